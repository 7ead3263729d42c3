package state

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"github.com/rowraft/rowraft"
)

// Version is the format that this binary writes, and the newest that it reads.
const Version = 1

const (
	magic       = "ROWTRAIN"
	headerBytes = 72
	flagEnded   = 1
	flagPlace   = 2
	flagJobStep = 4
	flagOpaque  = 8
	placeBytes  = 32

	maxPlace     = 1024 // bytes of a name
	maxJob       = 128
	maxConfig    = 64 << 10
	maxPositions = 1 << 16
	maxTensors   = 1 << 16
	maxTensor    = 256 // bytes of a name
	maxDims      = 8
	maxValues    = 1 << 40
	maxOpaque    = 1 << 40 // bytes
)

var (
	le         = binary.LittleEndian
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// State is one trainer at a batch boundary.
type State struct {
	Job            string
	Rank, Trainers int
	Ended          bool  // the trainer had done all its work
	Step           int64 // batches of this trainer
	JobStep        int64 // closed steps of the job in mode sync; 0: the mode has none
	Examples       int64
	Skipped        int64 // batches
	Acknowledged   int64 // acknowledged pushes
	Config         []byte
	Positions      []Position
	Place          *Place // in a followed stream; nil: none
	// Opaque is what a trainer of another program keeps in a form of its own, for example in rowraft.torch; nil: none.
	Opaque  []byte
	Tensors []Tensor
}

// Position is a position in one share of the data.
type Position struct {
	Share, Shares int
	Epoch         int64 // finished passes
	Offset        int64 // examples of the share that were read in the present pass
}

// Place is a position in a stream: behind a line of one of its files.
type Place struct {
	Name               string // of the file; "-" standard input
	Bytes, Lines       int64  // read so far
	HeadBytes, HeadSum uint32 // CRC-32C of the file's first HeadBytes bytes
}

// Kind is the meaning of a tensor.
type Kind uint16

// Kinds of tensors.
const (
	InitialWeights Kind = 1 // a table holds what training added
	Weights        Kind = 2
	OptimizerState Kind = 3
)

// Tensor is one dense tensor; Values are row-major.
type Tensor struct {
	Kind   Kind
	Name   string
	Shape  []int
	Values []float32
}

// BlobName returns the name of a trainer's state among the blobs of a checkpoint.
func BlobName(job string, rank int) string { return fmt.Sprintf("trainer/%s/%d", job, rank) }

// Size returns the number of bytes that WriteTo writes.
func (s *State) Size() int64 {
	n := headerBytes + len(s.Job) + len(s.Config) + 24*len(s.Positions) + 4
	if s.Place != nil {
		n += placeBytes + len(s.Place.Name)
	}
	if s.JobStep > 0 {
		n += 8
	}
	if len(s.Opaque) > 0 {
		n += 8 + len(s.Opaque)
	}
	for _, t := range s.Tensors {
		n += 8 + 8*len(t.Shape) + len(t.Name) + 4*len(t.Values)
	}
	return int64(n)
}

// WriteTo writes s. A state that the format cannot hold is CodeInvalidArgument.
func (s *State) WriteTo(dst io.Writer) (int64, error) {
	if err := s.check(); err != nil {
		return 0, rowraft.Errorf(rowraft.CodeInvalidArgument, "trainer state: %w", err)
	}
	sum := crc32.New(castagnoli)
	out := bufio.NewWriterSize(dst, 256<<10)
	w := io.MultiWriter(out, sum)
	head := s.header()
	for _, p := range s.Positions {
		head = le.AppendUint32(head, uint32(p.Share))
		head = le.AppendUint32(head, uint32(p.Shares))
		head = le.AppendUint64(head, uint64(p.Epoch))
		head = le.AppendUint64(head, uint64(p.Offset))
	}
	if p := s.Place; p != nil {
		head = le.AppendUint64(head, uint64(p.Bytes))
		head = le.AppendUint64(head, uint64(p.Lines))
		head = le.AppendUint32(head, p.HeadBytes)
		head = le.AppendUint32(head, p.HeadSum)
		head = le.AppendUint32(head, uint32(len(p.Name)))
		head = le.AppendUint32(head, 0)
		head = append(head, p.Name...)
	}
	if s.JobStep > 0 {
		head = le.AppendUint64(head, uint64(s.JobStep))
	}
	if len(s.Opaque) > 0 {
		head = le.AppendUint64(head, uint64(len(s.Opaque)))
	}
	for _, b := range [][]byte{head, s.Opaque} {
		if _, err := w.Write(b); err != nil {
			return 0, err
		}
	}
	for i := range s.Tensors {
		if err := s.Tensors[i].write(w); err != nil {
			return 0, err
		}
	}
	if _, err := out.Write(le.AppendUint32(nil, sum.Sum32())); err != nil {
		return 0, err
	}
	return s.Size(), out.Flush()
}

func (s *State) header() []byte {
	flags := uint16(0)
	if s.Ended {
		flags = flagEnded
	}
	if s.Place != nil {
		flags |= flagPlace
	}
	if s.JobStep > 0 {
		flags |= flagJobStep
	}
	if len(s.Opaque) > 0 {
		flags |= flagOpaque
	}
	b := append(make([]byte, 0, headerBytes+len(s.Job)+len(s.Config)+24*len(s.Positions)), magic...)
	b = le.AppendUint16(b, Version)
	b = le.AppendUint16(b, flags)
	b = le.AppendUint32(b, uint32(s.Rank))
	b = le.AppendUint32(b, uint32(s.Trainers))
	b = le.AppendUint32(b, uint32(len(s.Positions)))
	for _, n := range []int64{s.Step, s.Examples, s.Skipped, s.Acknowledged} {
		b = le.AppendUint64(b, uint64(n))
	}
	for _, n := range []int{len(s.Job), len(s.Config), len(s.Tensors)} {
		b = le.AppendUint32(b, uint32(n))
	}
	b = le.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return append(append(b, s.Job...), s.Config...)
}

func (t *Tensor) write(w io.Writer) error {
	b := le.AppendUint16(nil, uint16(t.Kind))
	b = le.AppendUint16(b, uint16(len(t.Name)))
	b = le.AppendUint32(b, uint32(len(t.Shape)))
	for _, d := range t.Shape {
		b = le.AppendUint64(b, uint64(d))
	}
	if _, err := w.Write(append(b, t.Name...)); err != nil {
		return err
	}
	buf := make([]byte, 0, chunkValues*4)
	for v := t.Values; len(v) > 0; {
		n := min(len(v), chunkValues)
		buf = buf[:0]
		for _, x := range v[:n] {
			buf = le.AppendUint32(buf, math.Float32bits(x))
		}
		if _, err := w.Write(buf); err != nil {
			return err
		}
		v = v[n:]
	}
	return nil
}

// check returns the first thing in s that the format page does not allow.
func (s *State) check() error {
	switch {
	case s.Rank < 0 || s.Rank >= s.Trainers || s.Trainers > math.MaxInt32:
		return fmt.Errorf("rank %d of %d trainers", s.Rank, s.Trainers)
	case len(s.Job) < 1 || len(s.Job) > maxJob:
		return fmt.Errorf("a job's name of %d bytes, want 1 to %d", len(s.Job), maxJob)
	case len(s.Config) > maxConfig || len(s.Positions) > maxPositions || len(s.Tensors) > maxTensors:
		return fmt.Errorf("%d bytes of configuration, %d positions, %d tensors", len(s.Config), len(s.Positions),
			len(s.Tensors))
	case s.Step < 0 || s.JobStep < 0 || s.Examples < 0 || s.Skipped < 0 || s.Acknowledged < 0 || s.Skipped > s.Step:
		return fmt.Errorf("%d steps, %d examples, %d batches skipped, %d pushes", s.Step, s.Examples, s.Skipped,
			s.Acknowledged)
	}
	for _, p := range s.Positions {
		if p.Share < 0 || p.Share >= p.Shares || p.Shares > math.MaxInt32 || p.Epoch < 0 || p.Offset < 0 {
			return fmt.Errorf("position %d of epoch %d in share %d of %d", p.Offset, p.Epoch, p.Share, p.Shares)
		}
	}
	if p := s.Place; p != nil && (p.Name == "" || len(p.Name) > maxPlace || p.Bytes < 0 || p.Lines < 0 ||
		int64(p.HeadBytes) > p.Bytes) {
		return fmt.Errorf("a place in %q behind %d bytes, %d lines, %d bytes of head", p.Name, p.Bytes, p.Lines,
			p.HeadBytes)
	}
	for i := range s.Tensors {
		t := &s.Tensors[i]
		n, err := t.size()
		if err != nil {
			return err
		}
		if n != int64(len(t.Values)) {
			return fmt.Errorf("tensor %s has %d values, its shape says %d", t.Name, len(t.Values), n)
		}
	}
	return nil
}

// size returns the number of values of the shape.
func (t *Tensor) size() (int64, error) {
	if t.Kind < InitialWeights || t.Kind > OptimizerState || len(t.Name) < 1 || len(t.Name) > maxTensor ||
		len(t.Shape) > maxDims {
		return 0, fmt.Errorf("a tensor of kind %d with %d dimensions and a name of %d bytes", t.Kind, len(t.Shape),
			len(t.Name))
	}
	n := int64(1)
	for _, d := range t.Shape {
		if d < 0 || d > 0 && n > maxValues/int64(d) {
			return 0, fmt.Errorf("tensor %s has the shape %v", t.Name, t.Shape)
		}
		n *= int64(d)
	}
	return n, nil
}
