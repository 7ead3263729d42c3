package mode

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/rowraft/rowraft/trainer/tables"
)

// runRound waits for a running round, then runs one.
func (g *Geo) runRound(ctx context.Context) error {
	if err := g.round.Acquire(ctx, 1); err != nil {
		return err
	}
	defer g.round.Release(1)
	return g.sendAndRead(ctx)
}

// sendAndRead runs a round: it sends the changes since the previous one, and reads those rows again.
// REQUIRES: g.round is taken.
func (g *Geo) sendAndRead(ctx context.Context) error {
	if err := g.Run.Failed(); err != nil {
		return err
	}
	deltas, batches, places := g.take()
	if len(deltas) == 0 {
		return nil
	}
	if err := g.send(ctx, deltas, batches); err != nil {
		return err
	}
	// Only after the push: a place that counts as done is not read again by another trainer.
	for _, at := range places {
		if err := g.placeDone(at); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, g.Patience)
	defer cancel()
	if err := g.Tables.Pull(ctx, deltas); err != nil {
		return g.Run.Fail(fmt.Errorf("pull the %d rows that %d batches changed: %w", tables.CountRows(deltas), batches,
			err))
	}
	g.merge(deltas)
	return nil
}

// take returns, by table and key, the changes that the tables do not know, and the splits of the data that they
// come from. It begins the next interval.
func (g *Geo) take() (deltas []tables.Segment, batches int64, places []Place) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range g.copies {
		if len(t.dirty) > 0 {
			deltas = append(deltas, t.takeLocked())
		}
	}
	batches, g.batches = g.batches, 0
	g.before += batches
	places, g.unsent = g.unsent, nil
	g.sending = batches
	g.now++
	return deltas, batches, places
}

func (t *geoTable) takeLocked() tables.Segment {
	slices.SortFunc(t.dirty, func(a, b int32) int { return cmp.Compare(t.metas[a].key, t.metas[b].key) })
	s := tables.Segment{Table: t.schema.ID, Dim: t.schema.Dim, Values: make([]float32, 0, len(t.dirty)*t.schema.Dim)}
	for _, at := range t.dirty {
		row, r := t.rowLocked(at), &t.metas[at]
		s.Keys = append(s.Keys, r.key)
		for i, w := range row.weights {
			s.Values = append(s.Values, float32(t.share*(w-row.base[i])))
		}
		// The next difference begins at these weights. If this push fails, the run fails, so no difference is skipped.
		copy(row.base, row.weights)
		r.dirty, r.sending = false, true
	}
	t.dirty = t.dirty[:0]
	return s
}

// send pushes deltas. As with any push, the client resends one with an unknown outcome under its number.
func (g *Geo) send(ctx context.Context, deltas []tables.Segment, batches int64) error {
	ctx, cancel := context.WithTimeout(ctx, g.Patience)
	defer cancel()
	sent := g.Run.PushBegan(batches)
	err := g.Tables.Push(ctx, deltas)
	if err != nil {
		err = fmt.Errorf("push what %d batches changed in %d rows: %w", batches, tables.CountRows(deltas), err)
	}
	return g.Run.PushEnded(sent, batches, err)
}

// merge moves the rows of segs to the tables' values, and keeps the progress made since take.
func (g *Geo) merge(segs []tables.Segment) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sending = 0
	for i := range segs {
		s := &segs[i]
		t := g.table(s.Table)
		for k, key := range s.Keys {
			at := t.places[key] // it is being sent, so the copy has it
			row, r := t.rowLocked(at), &t.metas[at]
			fresh := s.Values[k*s.Dim:][:s.Dim]
			for d, base := range row.base {
				row.base[d] = fresh[d]
				fresh[d] += row.weights[d] - base
			}
			t.rule.Assign(row.weights, row.state, fresh)
			r.sending, r.read = false, g.now
		}
	}
}

// Idle implements the mode: other trainers may wait for unsent progress.
func (g *Geo) Idle(ctx context.Context) error { return g.runRound(ctx) }

// Drain implements the mode: a last round sends the rest.
func (g *Geo) Drain(ctx context.Context) error { return g.runRound(ctx) }

// Wait implements the mode.
func (g *Geo) Wait() { g.all.Wait() }
