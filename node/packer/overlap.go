package packer

import (
	"math/bits"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

const (
	// overlapSamples is how many pushes overlap compares: of each client the last one of two sizes, for example.
	overlapSamples = 16
	overlapKeys    = 256 // of each push, about
	overlapEvery   = 32  // pushes
	overlapAge     = 256 // pushes after which a sample says nothing any more
)

// overlap estimates what sums would save if the pushes of several clients waited at the same time. It remembers a
// sample of the keys of recent pushes.
//
// Without it the packer would not know: while the log is quick, each push gets an entry at once, and none waits for
// another.
type overlap struct {
	samples []keySample
	next    int // which of samples the next new one replaces
	pushes  int // all, also those that cannot be summed
	worth   bool

	bytes, summable int // of the pushes since worth was set: all, and those that may be summed
}

// keySample has hashes of keys of one push, those that begin with 64-shift zeros.
type keySample struct {
	client rowraft.ClientID
	shift  int
	at     int // number of the push
	hashes []uint64
}

// note adds a push. Its segments are nil if it cannot be summed.
func (o *overlap) note(p *wire.Part, segments []segment) {
	o.pushes++
	o.bytes += p.Size()
	if segments != nil {
		o.summable += p.Size()
		o.sample(p.Client, segments)
	}
	if o.pushes%overlapEvery == 0 {
		o.worth = o.share()*float64(o.summable) > minSampledShare*float64(o.bytes)
		o.bytes, o.summable = 0, 0
	}
}

// sample replaces the sample of the last push of client that had about as many rows, or the oldest one.
func (o *overlap) sample(client rowraft.ClientID, segments []segment) {
	rows := 0
	for i := range segments {
		rows += segments[i].N
	}
	shift := 64 - bits.Len(uint(rows/overlapKeys))
	i := slices.IndexFunc(o.samples, func(s keySample) bool {
		return s.client == client && s.shift-shift >= -1 && s.shift-shift <= 1
	})
	switch {
	case i >= 0:
	case len(o.samples) < overlapSamples:
		i = len(o.samples)
		o.samples = append(o.samples, keySample{})
	default:
		i = o.next
		o.next = (o.next + 1) % overlapSamples
	}
	s := &o.samples[i]
	s.client, s.shift, s.at, s.hashes = client, shift, o.pushes, s.hashes[:0]
	for j := range segments {
		for k := range segments[j].N {
			if h := (uint64(segments[j].body.Key(k)) ^ uint64(segments[j].Table)) * hashFactor; h>>shift == 0 {
				s.hashes = append(s.hashes, h)
			}
		}
	}
}

// share returns about what share of the rows of recent pushes sums would save.
func (o *overlap) share() float64 {
	o.samples = slices.DeleteFunc(o.samples, func(s keySample) bool { return o.pushes-s.at >= overlapAge })
	shift := 64 // that of the largest push, so that each key is in all samples or in none
	for i := range o.samples {
		shift = min(shift, o.samples[i].shift)
	}
	var all []uint64
	for i := range o.samples {
		client, from := o.samples[i].client, len(all)
		if slices.ContainsFunc(o.samples[:i], func(s keySample) bool { return s.client == client }) {
			continue
		}
		for j := i; j < len(o.samples); j++ { // pushes of one client are not summed with each other
			for _, h := range o.samples[j].hashes {
				if o.samples[j].client == client && h>>shift == 0 {
					all = append(all, h)
				}
			}
		}
		slices.Sort(all[from:])
		all = all[:from+len(slices.Compact(all[from:]))]
	}
	n := len(all)
	if n == 0 {
		return 0
	}
	slices.Sort(all)
	return 1 - float64(len(slices.Compact(all)))/float64(n)
}
