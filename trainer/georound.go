package trainer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// runRound waits for the round that runs, if one does, then runs one.
func (g *geo) runRound(ctx context.Context) error {
	select {
	case g.round <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-g.round }()
	return g.sendAndRead(ctx)
}

// sendAndRead is a round: it sends what changed since the one before, and reads those
// rows anew. REQUIRES: g.round is taken.
func (g *geo) sendAndRead(ctx context.Context) error {
	if err := g.j.failed(); err != nil {
		return err
	}
	deltas, batches, pieces := g.take()
	if len(deltas) == 0 {
		return nil
	}
	if err := g.send(ctx, deltas, batches); err != nil {
		return err
	}
	for _, at := range pieces {
		if err := g.j.covered(at); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, g.j.cfg.Patience)
	defer cancel()
	if err := g.j.tables.Pull(ctx, deltas); err != nil {
		return g.j.fail(fmt.Errorf("pull the %d rows that %d batches changed: %w", rowsOf(deltas), batches, err))
	}
	g.merge(deltas)
	return nil
}

// take lists, by table and key, what the tables do not know, with the pieces of the data that it
// comes from, and begins the next interval.
func (g *geo) take() (deltas []Segment, batches int64, pieces []piece) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range g.tables {
		if len(t.dirty) > 0 {
			deltas = append(deltas, t.takeLocked())
		}
	}
	batches, g.batches = g.batches, 0
	g.before += batches
	pieces, g.pieces = g.pieces, nil
	g.sending = batches
	g.now++
	return deltas, batches, pieces
}

func (t *geoTable) takeLocked() Segment {
	slices.SortFunc(t.dirty, func(a, b int32) int { return cmp.Compare(t.metas[a].key, t.metas[b].key) })
	s := Segment{Table: t.schema.ID, Dim: t.schema.Dim, Values: make([]float32, 0, len(t.dirty)*t.schema.Dim)}
	for _, at := range t.dirty {
		row, r := t.rowLocked(at), &t.metas[at]
		s.Keys = append(s.Keys, r.key)
		for i, w := range row.weights {
			s.Values = append(s.Values, float32(t.share*(w-row.base[i])))
		}
		copy(row.base, row.weights)
		r.dirty, r.sending = false, true
	}
	t.dirty = t.dirty[:0]
	return s
}

// send pushes deltas, as any push: an unknown outcome is sent again under its number.
func (g *geo) send(ctx context.Context, deltas []Segment, batches int64) error {
	ctx, cancel := context.WithTimeout(ctx, g.j.cfg.Patience)
	defer cancel()
	sent := g.j.sending(batches)
	err := g.j.tables.Push(ctx, deltas)
	if err != nil {
		err = fmt.Errorf("push what %d batches changed in %d rows: %w", batches, rowsOf(deltas), err)
	}
	return g.j.answered(sent, batches, err)
}

// merge moves the rows of segs to what the tables say, and keeps the progress they have
// made since they were taken.
func (g *geo) merge(segs []Segment) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sending = 0
	for i := range segs {
		s := &segs[i]
		t := g.table(s.Table)
		for k, key := range s.Keys {
			at := t.places[key] // it was sending, so it is there
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

// rest implements way: others may wait for what this worker has not sent.
func (g *geo) rest(ctx context.Context) error { return g.runRound(ctx) }

// settle implements way: a last round sends what is left.
func (g *geo) settle(ctx context.Context) error { return g.runRound(ctx) }

// wait implements way.
func (g *geo) wait() { g.all.Wait() }
