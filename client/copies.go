package client

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cache"
	"github.com/rowraft/rowraft/wire"
)

// Reuse lets a pull take rows from copies that the client keeps of earlier pulls (Options.CacheBytes). All pulls of a
// table state the limit in one way; the numbers of a client are those of one caller, such as one training loop.
//
// A copy may lack pushes that were acknowledged since, also those of this client, and Read does not apply to it. A
// restore is noticed when the next row of the table is pulled: then all its copies are dropped.
type Reuse = cache.Reuse

// Copies counts the rows of pulls with Reuse. Age is in the unit of the caller's Now, or in nanoseconds with MaxAge.
type Copies = cache.Stats

// Copies returns what the client's copies of all tables have answered.
func (c *Client) Copies() (sum Copies) {
	c.tables.mu.RLock()
	defer c.tables.mu.RUnlock()
	for _, t := range c.tables.byID {
		t.copies.AddTo(&sum)
	}
	return sum
}

// reused is a segment of which a part came from copies.
type reused struct {
	*Segment
	cache.Found
	asOf     uint64 // how new the copies of the other rows will be
	versions []uint32
	old      *part // the rows of Found.Old; nil: none
}

// pullReusing is pull with copies, where segments allow them.
func (c *Client) pullReusing(ctx context.Context, how *Read, segs []Segment) (Freshness, error) {
	if err := cmp.Or(ofCluster(c.cluster.Load(), segs), c.ended(ctx.Err())); err != nil {
		return Freshness{}, err
	}
	ask, parts := make([]Segment, 0, len(segs)), make([]reused, 0, len(segs))
	newest := rowraft.TableEpoch(0) // of the copies
	for i := range segs {
		s := &segs[i]
		now, since := s.Reuse.Limits(c.clock.Now)
		if now == 0 || s.Present != nil || s.Applied != nil {
			ask = append(ask, *s)
			continue
		}
		p := reused{Segment: s, asOf: now, versions: slices.Repeat([]uint32{wire.NoVersion}, len(s.Keys))}
		var err error
		p.Found, err = s.Table.copies.Get(s.Keys, now, since, s.Values, p.versions, s.Table.Dim(), c.opts.CacheBytes,
			s.Reuse.ByAge())
		if err != nil {
			return Freshness{}, fmt.Errorf("table %s: %w", s.Table.schema.Name, err)
		}
		newest = max(newest, p.Epoch)
		parts = append(parts, p)
	}
	for i := range parts {
		ask = parts[i].ask(ask, &c.opts, newest)
	}
	got, err := c.pull(ctx, how, ask)
	if err != nil {
		return got.met, err
	}
	for i := range parts {
		if p := &parts[i]; got.epoch > p.Epoch {
			p.Table.copies.Begin(got.epoch)
			if p.Epoch > 0 && p.reads() { // the copies are of rows that a restore has replaced
				got, err = c.pull(ctx, how, segs)
				return got.met, err
			}
		}
	}
	for _, p := range parts {
		if p.old != nil && p.old.known {
			p.Table.copies.Asked(len(p.Old), p.old.unchanged)
		}
		if !got.mixed {
			p.Table.copies.Put(p.Keys, p.Old, p.asOf, p.Values, p.versions, got.epoch)
			p.Table.copies.Put(p.Keys, p.Missed, p.asOf, p.Values, p.versions, got.epoch)
		}
	}
	return got.met, nil
}

// ask appends the segments that pull the rows without new copies. Those of older copies are known while versions are
// worth it, and unless they are of another epoch than newest.
func (p *reused) ask(segs []Segment, opts *Options, newest rowraft.TableEpoch) []Segment {
	with, without := []int32(nil), p.Missed
	if !opts.WholeRows {
		rowBytes, rest := p.Table.Dim()*opts.DType.Size(), []int32(nil)
		with, without = p.Table.copies.Versioned(p.Keys, p.Missed, rowBytes)
		p.Old, rest = p.Table.copies.Versioned(p.Keys, p.Old, rowBytes)
		for _, row := range rest {
			p.versions[row] = wire.NoVersion
		}
		p.Missed, without = merged(p.Missed, rest), merged(without, rest)
	}
	for i, q := range []*part{
		{rows: p.Old, versions: p.versions, known: p.Epoch == newest, epoch: newest},
		{rows: with, versions: p.versions},
		{rows: without},
	} {
		if len(q.rows) == 0 {
			continue
		}
		if i == 0 {
			p.old = q
		}
		segs = append(segs, Segment{Table: p.Table, Keys: p.Keys, Values: p.Values, part: q})
	}
	return segs
}

// merged returns the rows of both lists, ascending.
func merged(a, b []int32) []int32 {
	if len(b) == 0 {
		return a
	}
	out := slices.Concat(a, b)
	slices.Sort(out)
	return out
}

// reads reports whether rows came from copies.
func (p *reused) reads() bool {
	return len(p.Old)+len(p.Missed) < len(p.Keys) || p.old != nil && p.old.unchanged > 0
}
