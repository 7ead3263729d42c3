package replay

import (
	"fmt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/e2e/check"
	"github.com/rowraft/rowraft/e2e/history"
	"github.com/rowraft/rowraft/e2e/load"
	"github.com/rowraft/rowraft/e2e/reference"
)

// pushes counts the pushes of one client to one row.
type pushes struct{ acked, issued int64 }

// compareCounts compares the counters in the replayed rows with the clients' history: every acknowledged
// push is included, no other push is, and deleted rows are absent.
func (r *Report) compareCounts(ops []history.Op, last []*reference.Machine) {
	type place struct{ row, client int }
	count := make(map[place]*pushes)
	rows, clients := 0, 0
	deleted := check.Sequences(ops)
	for _, op := range ops {
		if op.Kind != history.Push && op.Kind != history.Delete {
			continue
		}
		clients = max(clients, op.Client+1)
		for _, row := range op.Rows {
			rows = max(rows, row+1)
			if deleted[row] != nil {
				continue
			}
			p := count[place{row, op.Client}]
			if p == nil {
				p = &pushes{}
				count[place{row, op.Client}] = p
			}
			if op.Outcome == history.OK {
				p.acked++
			}
			if op.Outcome != history.Refused {
				p.issued++
			}
		}
	}
	table := counters(last)
	if table == nil {
		r.Problems = append(r.Problems, fmt.Sprintf("the logs hold no table %q", load.TableName))
		return
	}
	keys := load.Keys(table.ID, clustermap.EvenSlots(len(last), rowraft.SlotCount(last[0].Slots)), len(last), rows)
	pushed, held, shown := 0, 0, 0
	for _, m := range last {
		if t := m.Tables[table.ID]; t != nil {
			held += len(t.Rows)
		}
	}
	for row, key := range keys {
		var weights []float32
		if t := last[row%len(last)].Tables[table.ID]; t != nil && t.Rows[key] != nil {
			weights = t.Rows[key].Weights
			pushed++
		}
		if s := deleted[row]; s != nil {
			if why := wrongIn(s, weights); why != "" {
				r.Problems = append(r.Problems, fmt.Sprintf("row %d, which client %d deletes, too: %s", row, s.Client, why))
			}
			continue
		}
		for client := range clients {
			have, p := int64(0), count[place{row, client}]
			if client < len(weights) {
				have = int64(weights[client])
			}
			if p == nil {
				p = &pushes{}
			}
			if have >= p.acked && have <= p.issued {
				continue
			}
			if shown++; shown <= shownProblems {
				r.Problems = append(r.Problems,
					fmt.Sprintf("row %d, client %d: %d pushes were acknowledged and %d made, the logs hold %d",
						row, client, p.acked, p.issued, have))
			}
		}
	}
	if pushed != held {
		r.Problems = append(r.Problems,
			fmt.Sprintf("the logs hold %d rows of table %s, the clients pushed to %d of them", held, table.Name, pushed))
	}
}

// wrongIn returns the reason why weights cannot be the result of s, empty if they can. weights is nil if
// there is no row.
func wrongIn(s *check.Sequence, weights []float32) string {
	have := int64(0)
	for c, w := range weights {
		switch {
		case c == s.Client:
			have = int64(w)
		case w != 0:
			return fmt.Sprintf("the logs hold %v in dimension %d, of another client", w, c)
		}
	}
	for n := s.Acked(); n <= len(s.Ops); n++ {
		if s.After(n) == have && (have != 0) == (weights != nil) {
			return ""
		}
	}
	return fmt.Sprintf("the logs hold %d (a row: %v) after %d ops of it, %d of them up to the last that was "+
		"acknowledged, which left %d", have, weights != nil, len(s.Ops), s.Acked(), s.After(s.Acked()))
}

// counters returns the schema of the load's table.
func counters(last []*reference.Machine) *rowraft.Schema {
	for _, m := range last {
		for _, t := range m.Tables {
			if t.Schema.Name == load.TableName {
				return &t.Schema
			}
		}
	}
	return nil
}
