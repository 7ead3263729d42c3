package data

import "sort"

// order is the sequence of the examples of an epoch, or of the held-out ones, as chunks of files. Immutable.
type order struct {
	chunks []chunk
	starts []int64 // position of each chunk's first example, and of the end
	held   bool    // the held-out examples of the chunks; otherwise the others
	all    bool    // both
}

// chunk is the examples with from ≤ number < to of one input.
type chunk struct {
	input    int
	from, to int64
}

func (o *order) size() int64 { return o.starts[len(o.starts)-1] }

// find returns the chunk of a position.
func (o *order) find(position int64) int {
	return sort.Search(len(o.chunks), func(i int) bool { return o.starts[i+1] > position })
}

// has reports whether the order has an example of the set, by its number in all files.
func (o *order) has(f *Files, number int64) bool { return o.all || f.heldOut(number) == o.held }

// naturalOrder returns the order of the files: of all examples, of the training examples, or of the held-out ones.
func (f *Files) naturalOrder(all bool, held ...bool) *order {
	o := &order{all: all, held: len(held) > 0}
	o.chunks = f.chunks(false)
	f.count(o)
	return o
}

// chunks divides the files. Blocks that can be read in any order are chunks of their own with blocks.
func (f *Files) chunks(blocks bool) (out []chunk) {
	for i, in := range f.inputs {
		step := max(in.size, 1)
		if n := in.block(); blocks && n > 0 {
			step = n
		}
		for from := int64(0); from < in.size; from += step {
			out = append(out, chunk{i, from, min(from+step, in.size)})
		}
	}
	return out
}

// block returns how many examples a reader can find at once; 0: it reads the file from its beginning.
func (in *input) block() int64 {
	if len(in.marks) > 0 {
		return markEvery
	}
	if in.rows {
		return rowsBlock
	}
	return 0
}

// count sets the starts of the chunks.
func (f *Files) count(o *order) {
	at := int64(0)
	o.starts = append(make([]int64, 0, len(o.chunks)+1), 0)
	for i := range o.chunks {
		c := &o.chunks[i]
		base := f.base[c.input]
		switch {
		case o.all:
			at += c.to - c.from
		case f.random():
			for n := c.from; n < c.to; n++ {
				if f.heldOut(base+n) == o.held {
					at++
				}
			}
		case o.held: // the last examples
			at += max(0, base+c.to-max(base+c.from, f.train))
		default:
			at += max(0, min(base+c.to, f.train)-(base+c.from))
		}
		o.starts = append(o.starts, at)
	}
}

// orderOf returns the order of an epoch.
func (f *Files) orderOf(epoch int64) *order {
	if f.opt.Shuffle == "" || f.opt.Shuffle == ShuffleNone {
		epoch = 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.order == nil || f.orderEpoch != epoch {
		o := &order{chunks: f.chunks(f.opt.Shuffle == ShuffleExamples)}
		if f.opt.Shuffle == ShuffleFiles || f.opt.Shuffle == ShuffleExamples {
			r := newRandom(f.opt.Seed, uint64(epoch), 0)
			r.shuffle(len(o.chunks), func(i, j int) { o.chunks[i], o.chunks[j] = o.chunks[j], o.chunks[i] })
		}
		f.count(o)
		f.order, f.orderEpoch = o, epoch
	}
	return f.order
}

// random is a generator of numbers (splitmix64) that has the same results in every version of this program.
type random uint64

func newRandom(seed, epoch, window uint64) *random {
	r := random(mix(mix(mix(seed+0x73687566)+epoch) + window))
	return &r
}

func (r *random) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	return mix(uint64(*r))
}

// shuffle permutes n things (Fisher and Yates). The bias of the remainder is below n/2^64.
func (r *random) shuffle(n int, swap func(i, j int)) {
	for i := n - 1; i > 0; i-- {
		swap(i, int(r.next()%uint64(i+1)))
	}
}
