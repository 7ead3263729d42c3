package rowstore

import (
	"github.com/rowraft/rowraft/internal/slab"
	"github.com/rowraft/rowraft/shard/rowstore/order"
)

// reclaimer frees segments and records when no reader can hold them any more. The writer owns retired.
//
// Invariant: retired[e&1] has what was taken out of the index in epoch e, or in an epoch with the same last bit from
// which no reader is left.
type reclaimer struct {
	grace   order.Grace
	retired [2]retired
}

// retired is the objects that were taken out of the index in one epoch.
type retired struct {
	segs   []segment
	places []slab.Place

	extents []int // of the tier
}

func (r *retired) empty() bool { return len(r.segs)+len(r.places)+len(r.extents) == 0 }

func (c *reclaimer) now() *retired { return &c.retired[c.grace.Epoch()&1] }

// retire frees seg when no reader holds it. REQUIRES: new readers cannot find seg.
func (c *reclaimer) retire(seg segment) {
	r := c.now()
	r.segs = append(r.segs, seg)
}

// retirePlace frees the record at p when no reader holds it. Until then the record reads as gone.
// REQUIRES: new readers cannot find the record.
func (c *reclaimer) retirePlace(rs *records, p slab.Place) {
	rs.at(p).setVersion(gone)
	r := c.now()
	r.places = append(r.places, p)
}

// reclaim frees the retired objects of x that no reader holds any more. REQUIRES: the writer holds no lookup.
func (x *index) reclaim() {
	if x.retired[0].empty() && x.retired[1].empty() {
		return
	}
	e, ok := x.grace.Advance()
	if !ok {
		return
	}
	r := &x.retired[e&1] // from two epochs ago
	for _, seg := range r.segs {
		x.blocks.Free(seg)
	}
	for _, p := range r.places {
		x.slab.Free(p)
	}
	if len(r.extents) > 0 {
		x.tier.file.Reuse(r.extents)
	}
	r.segs, r.places, r.extents = r.segs[:0], r.places[:0], r.extents[:0]
}
