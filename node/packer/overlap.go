package packer

import (
	"math/bits"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

const (
	// overlapClients is how many clients' last pushes overlap compares.
	overlapClients = 8
	overlapKeys    = 256 // of each push, about
	overlapEvery   = 32  // pushes
)

// overlap estimates what sums would save if the pushes of several clients waited at the same time. It remembers a
// sample of the keys of the last push of a few clients.
//
// Without it the packer would not know: while the log is quick, each push gets an entry at once, and none waits for
// another.
type overlap struct {
	last  []keySample
	shift int // of all samples
	next  int // which of last the next new client replaces
	since int // pushes since worth was set
	worth bool
}

// keySample has hashes of keys of one push, those below a limit that is common to all samples.
type keySample struct {
	client rowraft.ClientID
	hashes []uint64
}

// note adds a push that may be summed.
func (o *overlap) note(p *wire.Part, segments []segment) {
	rows := 0
	for i := range segments {
		rows += segments[i].N
	}
	if rows == 0 {
		return
	}
	shift := 64 - bits.Len(uint(rows/overlapKeys))
	if d := shift - o.shift; d < -1 || d > 1 || o.last == nil {
		*o = overlap{last: o.last[:0], shift: shift, worth: o.worth}
	}
	i := slices.IndexFunc(o.last, func(s keySample) bool { return s.client == p.Client })
	switch {
	case i >= 0:
	case len(o.last) < overlapClients:
		i = len(o.last)
		o.last = append(o.last, keySample{})
	default:
		i = o.next
		o.next = (o.next + 1) % overlapClients
	}
	s := &o.last[i]
	s.client, s.hashes = p.Client, s.hashes[:0]
	for j := range segments {
		for k := range segments[j].N {
			if h := (uint64(segments[j].body.Key(k)) ^ uint64(segments[j].Table)) * hashFactor; h>>o.shift == 0 {
				s.hashes = append(s.hashes, h)
			}
		}
	}
	if o.since++; o.since >= overlapEvery {
		o.since = 0
		o.worth = o.share() > minSampledShare
	}
}

// share returns about what share of the rows sums would save.
func (o *overlap) share() float64 {
	var all []uint64
	for i := range o.last {
		all = append(all, o.last[i].hashes...)
	}
	n := len(all)
	if n == 0 {
		return 0
	}
	slices.Sort(all)
	return 1 - float64(len(slices.Compact(all)))/float64(n)
}
