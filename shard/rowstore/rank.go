package rowstore

import (
	"math/bits"
	"slices"

	"github.com/rowraft/rowraft/internal/slab"
)

// rank orders rows or candidates for removal from a slot: the lowest leave first. Two rows may be equal in (hi, lo):
// rows of different slots of a checkpoint, which a restore into fewer slots has put into one. The smaller key then
// leaves first, so the result never depends on the order of the input.
type rank struct {
	hi, lo uint64
	ref    uint64 // the index entry of the row; 0 for a candidate, whose lo is its key
}

// ranking chooses the rows or candidates of a slot that leave.
type ranking struct {
	records *records
	list    []rank // scratch of the caller
}

func (rs *ranking) compare(a, b rank) int {
	switch {
	case rs.less(a, b):
		return -1
	case rs.less(b, a):
		return 1
	}
	return 0
}

func (rs *ranking) less(a, b rank) bool {
	return a.hi < b.hi || a.hi == b.hi && (a.lo < b.lo || a.lo == b.lo && rs.smallerKey(a, b))
}

// smallerKey compares rows of equal rank.
func (rs *ranking) smallerKey(a, b rank) bool {
	key := func(r rank) uint64 { return rs.records.at(slab.Place(uint32(r.ref) - 1)).key() }
	return a.ref != b.ref && key(a) < key(b)
}

// lowest moves the n lowest of r to its front, in no order, and returns them (quickselect). It
// takes linear time: a tenth of the time of sorting.
func (rs *ranking) lowest(r []rank, n int) []rank {
	if n <= 0 {
		return r[:0]
	}
	from, to := 0, len(r)
	for tries := 2 * bits.Len(uint(len(r))); from < n && n < to; tries-- {
		if tries == 0 { // bad pivots; never observed
			slices.SortFunc(r[from:to], rs.compare)
			break
		}
		if p := rs.partition(r[from:to]) + from; p < n {
			from = p + 1
		} else {
			to = p
		}
	}
	return r[:n]
}

// partition moves the median of three to its sorted position, lower ranks before it and higher
// ranks after it, and returns that position. REQUIRES: r is not empty.
func (rs *ranking) partition(r []rank) int {
	last := len(r) - 1
	mid := last / 2
	if rs.less(r[last], r[0]) {
		r[0], r[last] = r[last], r[0]
	}
	if rs.less(r[mid], r[0]) {
		r[0], r[mid] = r[mid], r[0]
	}
	if rs.less(r[mid], r[last]) {
		r[mid], r[last] = r[last], r[mid]
	}
	pivot, at := r[last], 0
	for i := range last {
		if rs.less(r[i], pivot) {
			r[i], r[at] = r[at], r[i]
			at++
		}
	}
	r[at], r[last] = r[last], r[at]
	return at
}
