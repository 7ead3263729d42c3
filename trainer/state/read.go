package state

import (
	"bufio"
	"errors"
	"hash"
	"hash/crc32"
	"io"
	"math"
	"slices"

	"github.com/rowraft/rowraft"
)

// chunkValues is how many numbers are converted at a time. It limits what a damaged length can make a reader
// allocate.
const chunkValues = 64 << 10

func corrupt(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodeCorrupt, "trainer state: "+format, args...)
}

// reader computes the checksum of what it reads.
type reader struct {
	r   *bufio.Reader
	sum hash.Hash32
}

// take reads n bytes; n is small, or a correct checksum has covered it.
func (r *reader) take(n int) ([]byte, error) {
	b := make([]byte, n)
	if _, err := io.ReadFull(r.r, b); err != nil {
		return nil, cut(err)
	}
	_, _ = r.sum.Write(b) // never fails
	return b, nil
}

// cut keeps the error of a medium and turns the end of a file into CodeCorrupt.
func cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return corrupt("it ends too early")
	}
	return err
}

// Read reads a state and expects the end behind it.
//
// Errors: CodeCorrupt, CodeVersionTooNew, those of src.
func Read(src io.Reader) (*State, error) {
	r := &reader{bufio.NewReaderSize(src, 256<<10), crc32.New(castagnoli)}
	s, positions, tensors, err := r.header()
	if err != nil {
		return nil, err
	}
	for range positions {
		b, err := r.take(24)
		if err != nil {
			return nil, err
		}
		s.Positions = append(s.Positions, Position{
			Share: int(le.Uint32(b)), Shares: int(le.Uint32(b[4:])),
			Epoch: int64(le.Uint64(b[8:])), Offset: int64(le.Uint64(b[16:])),
		})
	}
	if s.Place != nil {
		if err := r.place(s.Place); err != nil {
			return nil, err
		}
	}
	if s.JobStep != 0 { // it was announced
		b, err := r.take(8)
		if err != nil {
			return nil, err
		}
		if s.JobStep = int64(le.Uint64(b)); s.JobStep < 1 {
			return nil, corrupt("step %d of the job", s.JobStep)
		}
	}
	if s.Opaque != nil { // it was announced
		if s.Opaque, err = r.opaque(); err != nil {
			return nil, err
		}
	}
	for range tensors {
		t, err := r.tensor()
		if err != nil {
			return nil, err
		}
		s.Tensors = append(s.Tensors, t)
	}
	want := r.sum.Sum32()
	b, err := r.take(4)
	if err != nil {
		return nil, err
	}
	if le.Uint32(b) != want {
		return nil, corrupt("checksum %08x, want %08x", le.Uint32(b), want)
	}
	if _, err := r.r.ReadByte(); err != io.EOF {
		if err == nil {
			err = corrupt("bytes follow its end")
		}
		return nil, err
	}
	if err := s.check(); err != nil {
		return nil, corrupt("%w", err)
	}
	return s, nil
}

// header reads the fields and lengths in the first 72 bytes.
func (r *reader) header() (s *State, positions, tensors uint32, err error) {
	b, err := r.take(10)
	if err != nil {
		return nil, 0, 0, err
	}
	if string(b[:8]) != magic {
		return nil, 0, 0, corrupt("magic %q, want %q", b[:8], magic)
	}
	if v := le.Uint16(b[8:]); v > Version {
		return nil, 0, 0, rowraft.Errorf(rowraft.CodeVersionTooNew, "trainer state: format %d, this binary knows %d", v,
			Version)
	} else if v < 1 {
		return nil, 0, 0, corrupt("format 0")
	}
	rest, err := r.take(headerBytes - 10)
	if err != nil {
		return nil, 0, 0, err
	}
	b = append(b, rest...)
	if got, want := le.Uint32(b[68:]), crc32.Checksum(b[:68], castagnoli); got != want {
		return nil, 0, 0, corrupt("checksum %08x of its header, want %08x", got, want)
	}
	flags, job, config := le.Uint16(b[10:]), le.Uint32(b[56:]), le.Uint32(b[60:])
	positions, tensors = le.Uint32(b[20:]), le.Uint32(b[64:])
	known := uint16(flagEnded | flagPlace | flagJobStep | flagOpaque)
	if flags&^known != 0 || job > maxJob || config > maxConfig ||
		positions > maxPositions || tensors > maxTensors {
		return nil, 0, 0, corrupt("flags %x, %d and %d bytes of text, %d positions, %d tensors", flags, job, config,
			positions, tensors)
	}
	s = &State{
		Rank: int(le.Uint32(b[12:])), Trainers: int(le.Uint32(b[16:])), Ended: flags&flagEnded != 0,
		Step: int64(le.Uint64(b[24:])), Examples: int64(le.Uint64(b[32:])),
		Skipped: int64(le.Uint64(b[40:])), Acknowledged: int64(le.Uint64(b[48:])),
	}
	if flags&flagPlace != 0 {
		s.Place = new(Place)
	}
	if flags&flagJobStep != 0 {
		s.JobStep = 1 // until it is read
	}
	if flags&flagOpaque != 0 {
		s.Opaque = []byte{} // until it is read
	}
	text, err := r.take(int(job + config))
	if err != nil {
		return nil, 0, 0, err
	}
	s.Job, s.Config = string(text[:job]), text[job:]
	return s, positions, tensors, nil
}

func (r *reader) place(p *Place) error {
	b, err := r.take(placeBytes)
	if err != nil {
		return err
	}
	*p = Place{Bytes: int64(le.Uint64(b)), Lines: int64(le.Uint64(b[8:])), HeadBytes: le.Uint32(b[16:]),
		HeadSum: le.Uint32(b[20:])}
	name := le.Uint32(b[24:])
	if name > maxPlace || le.Uint32(b[28:]) != 0 {
		return corrupt("a place with a name of %d bytes", name)
	}
	if b, err = r.take(int(name)); err != nil {
		return err
	}
	p.Name = string(b)
	return nil
}

// opaque reads in chunks, because the checksum comes behind the length and the bytes.
func (r *reader) opaque() (out []byte, err error) {
	b, err := r.take(8)
	if err != nil {
		return nil, err
	}
	left := le.Uint64(b)
	if left < 1 || left > maxOpaque {
		return nil, corrupt("%d bytes of opaque state", left)
	}
	for left > 0 {
		if b, err = r.take(int(min(left, 4*chunkValues))); err != nil {
			return nil, err
		}
		out, left = append(out, b...), left-uint64(len(b))
	}
	return out, nil
}

func (r *reader) tensor() (t Tensor, err error) {
	b, err := r.take(8)
	if err != nil {
		return t, err
	}
	name, dims := le.Uint16(b[2:]), le.Uint32(b[4:])
	if dims > maxDims || name > maxTensor {
		return t, corrupt("a tensor with %d dimensions and a name of %d bytes", dims, name)
	}
	t.Kind = Kind(le.Uint16(b))
	if b, err = r.take(8*int(dims) + int(name)); err != nil {
		return t, err
	}
	for i := range dims {
		t.Shape = append(t.Shape, int(le.Uint64(b[8*i:])))
	}
	t.Name = string(b[8*dims:])
	left, err := t.size()
	if err != nil {
		return t, corrupt("%w", err)
	}
	for left > 0 {
		n := int(min(left, chunkValues))
		if b, err = r.take(4 * n); err != nil {
			return t, err
		}
		t.Values = slices.Grow(t.Values, n)
		for i := range n {
			t.Values = append(t.Values, math.Float32frombits(le.Uint32(b[4*i:])))
		}
		left -= int64(n)
	}
	return t, nil
}
