package data

import (
	"fmt"
	"io"
)

// reader reads the examples of one file in their order.
type reader interface {
	number() int64           // of the next example in the file
	seek(number int64) error // continues at an example; backwards only if the input has blocks
	skip() error
	// read appends the next example to b. The error of a line that is wrong is a badLine; the next call reads on
	// behind it.
	read(b *Batch) error
	close() error
}

// fileSource reads a Share of an order.
type fileSource struct {
	set      *Files
	order    *order
	share    Share
	epoch    int64
	position int64 // of the next example

	chunk  int    // of the next example that the reader gives
	at     int64  // position of that example; −1: the reader must seek
	reader reader // of input; nil: none
	input  int

	window *window // of shuffled examples; nil if they are read in order
	lines  int64   // that were read
	bad    int64   // of these
}

func newSource(f *Files, o *order, share Share) *fileSource {
	s := &fileSource{set: f, order: o, share: share, position: share.From, at: -1}
	if f.opt.Shuffle == ShuffleExamples && !o.held && !o.all {
		s.window = &window{first: -1, batch: NewBatch(int(min(int64(f.opt.Buffer), o.size())), f.Shape())}
	}
	return s
}

// Next implements [Source].
func (s *fileSource) Next(b *Batch) error {
	b.Reset()
	shape := s.set.Shape()
	for size := b.size(shape); b.N < size; {
		if s.share.To >= 0 && s.position >= s.share.To {
			break
		}
		if !s.share.own(s.position) {
			if s.window == nil {
				if err := s.step(nil); err != nil {
					return err
				}
			}
			s.position++
			continue
		}
		if b.Read == 0 {
			b.First = s.position
		}
		var err error
		if s.window != nil {
			err = s.shuffled(b, shape)
		} else {
			_, err = s.example(b)
		}
		if err != nil {
			return err
		}
		s.position++
		b.Read++
	}
	if b.Read == 0 {
		return io.EOF
	}
	return nil
}

// example reads the example at s.position into b; ok is false if its line is bad.
func (s *fileSource) example(b *Batch) (ok bool, err error) {
	err = s.step(b)
	s.lines++
	if err == nil {
		return true, nil
	}
	if s.set.opt.MaxBad == 0 || !isBadLine(err) {
		return false, err
	}
	s.bad++
	if float64(s.bad) > s.set.opt.MaxBad*float64(max(s.lines, badOf)) {
		return false, s.set.tooMany(err, s.bad, s.lines)
	}
	s.set.skipped(err)
	return false, nil
}

// step reads the example at s.position into b, or skips it if b is nil.
func (s *fileSource) step(b *Batch) error {
	if s.at != s.position {
		if err := s.seek(s.position); err != nil {
			return err
		}
	}
	for {
		c := s.order.chunks[s.chunk]
		if s.reader.number() >= c.to {
			if s.chunk++; s.chunk == len(s.order.chunks) {
				return io.ErrUnexpectedEOF // the order has fewer examples than its size
			}
			if err := s.open(s.order.chunks[s.chunk].from); err != nil {
				return err
			}
			continue
		}
		if !s.order.has(s.set, s.set.base[c.input]+s.reader.number()) {
			if err := s.ended(s.reader.skip()); err != nil {
				return err
			}
			continue
		}
		s.at++
		if b == nil {
			return s.ended(s.reader.skip())
		}
		return s.ended(s.reader.read(b))
	}
}

// ended turns the end of a file, where an example was, into an error.
func (s *fileSource) ended(err error) error {
	if err == io.EOF {
		in := s.set.inputs[s.input]
		return invalid("%s: the file ends after %d examples and had %d when it was opened", in.path, s.reader.number()-1,
			in.size)
	}
	return err
}

// seek makes the example at a position the next one.
func (s *fileSource) seek(position int64) error {
	before := s.chunk
	s.chunk = s.order.find(position)
	if s.chunk == len(s.order.chunks) {
		return fmt.Errorf("position %d of %d examples", position, s.order.size())
	}
	c := s.order.chunks[s.chunk]
	left := position - s.order.starts[s.chunk]
	number := c.from
	if !s.set.random() || s.order.all {
		if s.order.held { // the last examples of the chunk
			number = max(number, s.set.train-s.set.base[c.input])
		}
		number += left
	} else {
		if s.reader != nil && s.at >= 0 && s.at < position && s.chunk == before { // it is ahead in the same chunk
			left, number = position-s.at, s.reader.number()
		}
		for ; left > 0 || !s.order.has(s.set, s.set.base[c.input]+number); number++ {
			if s.order.has(s.set, s.set.base[c.input]+number) {
				left--
			}
		}
	}
	s.at = position
	return s.open(number)
}

// open makes the reader read the present chunk, from the example with this number.
func (s *fileSource) open(number int64) error {
	c := s.order.chunks[s.chunk]
	in := s.set.inputs[c.input]
	if s.reader != nil && s.input == c.input && (s.reader.number() <= number || in.block() > 0) {
		return s.ended(s.reader.seek(number))
	}
	at := s.at
	if err := s.Close(); err != nil {
		return err
	}
	r, err := s.set.open(in)
	if err != nil {
		return err
	}
	s.reader, s.input, s.at = r, c.input, at
	return s.ended(s.reader.seek(number))
}

// Skip implements [Source]. It skips shuffled examples, and those of an uncompressed file, at once.
func (s *fileSource) Skip(n int64) error {
	if n == 0 {
		return nil
	}
	k := int64(s.share.Trainers)
	for !s.share.own(s.position) {
		s.position++
	}
	last := s.position + (n-1)*k
	if end := s.end(); last >= end {
		return io.EOF
	}
	s.position = last + 1
	return nil
}

// end returns the position behind the share.
func (s *fileSource) end() int64 {
	if s.share.To < 0 {
		return s.order.size()
	}
	return min(s.share.To, s.order.size())
}

// Continue implements [Continuer].
func (s *fileSource) Continue(epoch, from, to int64) bool {
	if from < s.position || epoch != s.epoch {
		return false
	}
	s.share = Share{From: from, To: to, Trainers: 1}
	s.position = from
	return true
}

// Close implements [Source].
func (s *fileSource) Close() error {
	if s.reader == nil {
		return nil
	}
	err := s.reader.close()
	s.reader, s.at = nil, -1
	return err
}

// notedBad is the number of bad lines that a set reports one by one.
const notedBad = 5

// skipped counts a bad line and reports the first ones.
func (f *Files) skipped(err error) {
	f.bad.Add(1)
	if n := f.said.Add(1); n <= notedBad {
		f.mu.Lock()
		note := f.note
		f.mu.Unlock()
		note(fmt.Sprintf("a bad line is skipped: %v", err))
	}
}

// window holds the examples at first ≤ position < first + len(perm) of an epoch, as far as the share has them.
type window struct {
	first int64
	perm  []int32 // perm[i] is the slot of the example at position first + i
	slots []int32 // number in batch of the example in a slot, in the order of the files; −1: its line is bad
	batch *Batch
}

// shuffled appends the example at s.position to b.
func (s *fileSource) shuffled(b *Batch, shape Shape) error {
	w := s.window
	if w.first < 0 || s.position < w.first || s.position >= w.first+int64(len(w.perm)) {
		if err := s.fill(); err != nil {
			return err
		}
	}
	if i := w.slots[w.perm[s.position-w.first]]; i >= 0 {
		b.CopyFrom(w.batch, int(i), shape)
	}
	return nil
}

// fill reads the window of s.position.
func (s *fileSource) fill() error {
	w, buffer := s.window, int64(s.set.opt.Buffer)
	number := s.position / buffer
	w.first = number * buffer
	n := int(min(buffer, s.order.size()-w.first))
	if cap(w.perm) < n {
		w.perm, w.slots = make([]int32, n), make([]int32, n)
	}
	w.perm, w.slots = w.perm[:n], w.slots[:n]
	for i := range w.perm {
		w.perm[i], w.slots[i] = int32(i), -1
	}
	newRandom(s.set.opt.Seed, uint64(s.epoch), 1+uint64(number)).shuffle(n, func(i, j int) {
		w.perm[i], w.perm[j] = w.perm[j], w.perm[i]
	})
	for i, slot := range w.perm {
		if p := w.first + int64(i); p >= s.position && s.share.own(p) { // Continue may extend the share in this window
			w.slots[slot] = 0 // it is needed
		}
	}
	w.batch.Reset()
	position := s.position
	defer func() { s.position = position }()
	for slot := range w.slots {
		s.position = w.first + int64(slot)
		if w.slots[slot] < 0 {
			continue
		}
		w.slots[slot] = int32(w.batch.N)
		ok, err := s.example(w.batch)
		if err != nil {
			w.first = -1
			return err
		}
		if !ok {
			w.slots[slot] = -1
		}
	}
	return nil
}
