package client

import (
	"cmp"
	"context"
	"fmt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cache"
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
	rest   Segment            // the rows that did not
	missed []int32            // their indices
	asOf   uint64             // how new their copies will be
	epoch  rowraft.TableEpoch // the copies that were read have the rows of this epoch
}

// pullReusing is pull with copies, where segments allow them.
func (c *Client) pullReusing(ctx context.Context, how *Read, segs []Segment) (Freshness, error) {
	if err := cmp.Or(ofCluster(c.cluster.Load(), segs), c.ended(ctx.Err())); err != nil {
		return Freshness{}, err
	}
	ask, parts := make([]Segment, 0, len(segs)), make([]reused, 0, len(segs))
	for _, s := range segs {
		now, since := s.Reuse.Limits(c.began)
		if now == 0 || s.Present != nil || s.Applied != nil {
			ask = append(ask, s)
			continue
		}
		missed, epoch, err := s.Table.copies.Get(s.Keys, now, since, s.Values, s.Table.Dim(), c.opts.CacheBytes,
			s.Reuse.ByAge())
		if err != nil {
			return Freshness{}, fmt.Errorf("table %s: %w", s.Table.schema.Name, err)
		}
		p := reused{Segment: &s, rest: s.only(missed), missed: missed, asOf: now, epoch: epoch}
		parts, ask = append(parts, p), append(ask, p.rest)
	}
	got, err := c.pull(ctx, how, ask)
	if err != nil {
		return got.met, err
	}
	for i := range parts {
		if p := &parts[i]; got.epoch > p.epoch {
			p.Table.copies.Begin(got.epoch)
			if p.epoch > 0 && len(p.missed) < len(p.Keys) { // the copies are of rows that a restore has replaced
				got, err = c.pull(ctx, how, segs)
				return got.met, err
			}
		}
	}
	for _, p := range parts {
		for j, i := range p.missed {
			copy(p.row(i), p.rest.row(int32(j)))
		}
		if !got.mixed {
			p.Table.copies.Put(p.rest.Keys, p.asOf, p.rest.Values, got.epoch)
		}
	}
	return got.met, nil
}

// only returns a segment for those rows of s.
func (s *Segment) only(rows []int32) Segment {
	keys := make([]rowraft.Key, 0, len(rows))
	for _, i := range rows {
		keys = append(keys, s.Keys[i])
	}
	return Segment{Table: s.Table, Keys: keys, Values: make([]float32, len(rows)*s.Table.Dim())}
}
