package client

import (
	"context"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cache"
)

// Reuse lets a pull take rows from copies that the client keeps of earlier pulls (Options.CacheBytes). The zero Reuse
// uses and makes none. All pulls of a table state their limits in one way: MaxAge, or Now and Since.
//
// A copy may lack pushes that were acknowledged since, also those of this client, and Read does not apply to it.
type Reuse struct {
	MaxAge time.Duration // how long before this call the copy was asked for

	// Now and Since are in a unit of the caller's that never falls, such as steps. The rows that this pull gets
	// from servers become copies as of Now; copies as of Since, or later, are new enough.
	Now, Since uint64
}

// limits returns Now and Since of r; 0 and 0 if it allows no copies.
func (r *Reuse) limits(began time.Time) (now, since uint64) {
	if r.MaxAge <= 0 {
		return r.Now, r.Since
	}
	at := time.Since(began) + time.Nanosecond
	return uint64(at), uint64(max(at-r.MaxAge, 0))
}

// Copies counts the rows of pulls with Reuse.
type Copies = cache.Stats

// Copies returns what the client's copies of all tables have answered, for each table since its last restore.
func (c *Client) Copies() (sum Copies) {
	c.tables.mu.RLock()
	defer c.tables.mu.RUnlock()
	for _, t := range c.tables.byID {
		if k := t.copies.Load(); k != nil {
			s := k.Stats()
			sum.Hits, sum.Stale, sum.Misses = sum.Hits+s.Hits, sum.Stale+s.Stale, sum.Misses+s.Misses
		}
	}
	return sum
}

// copies are those of the rows of one table, all from one table epoch: a restore replaces the rows.
type copies struct {
	epoch rowraft.TableEpoch
	*cache.Cache
}

// copiesOf returns the copies of t, which are empty after a restore.
func (c *Client) copiesOf(t *Table) *copies {
	epoch := rowraft.TableEpoch(c.sessions.epoch.Load())
	for {
		k := t.copies.Load()
		if k != nil && k.epoch >= epoch {
			return k
		}
		rows, _ := cache.New(c.opts.CacheBytes, t.schema.Dim) // Dial has checked the size
		if next := (&copies{epoch, rows}); t.copies.CompareAndSwap(k, next) {
			return next
		}
	}
}

// pullReusing is pull with copies, where segments allow them.
func (c *Client) pullReusing(ctx context.Context, how *Read, segs []Segment) (Freshness, error) {
	ask := make([]Segment, 0, len(segs))
	kept := make([]func(), 0, len(segs))
	for i := range segs {
		s := &segs[i]
		now, since := s.Reuse.limits(c.began)
		if now == 0 || s.Present != nil || s.Applied != nil {
			ask = append(ask, *s)
			continue
		}
		rows := c.copiesOf(s.Table)
		if missed := rows.Get(s.Keys, since, s.Values); len(missed) > 0 {
			rest := s.only(missed)
			ask = append(ask, rest)
			kept = append(kept, func() {
				for j, i := range missed {
					copy(s.row(i), rest.row(int32(j)))
				}
				rows.Put(rest.Keys, now, rest.Values)
			})
		}
	}
	met, err := c.pull(ctx, how, ask)
	for i := 0; err == nil && i < len(kept); i++ {
		kept[i]()
	}
	return met, err
}

// only returns a segment for those rows of s.
func (s *Segment) only(rows []int32) Segment {
	out := Segment{Table: s.Table, Keys: make([]rowraft.Key, len(rows)), Values: make([]float32, len(rows)*s.Table.Dim())}
	for j, i := range rows {
		out.Keys[j] = s.Keys[i]
	}
	return out
}
