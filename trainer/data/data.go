package data

import (
	"github.com/zeebo/xxh3"

	"github.com/rowraft/rowraft"
)

// Batch holds up to Cap examples. Its slices are allocated once by [NewBatch].
type Batch struct {
	N      int           // examples it holds now
	First  int64         // number of the first example in its source, for messages
	Labels []float32     // [Cap], 0 or 1; the number of the class if there are more
	Dense  []float32     // [Cap, dense], row-major
	Keys   []rowraft.Key // [Cap, categorical], row-major
	// Truth is the probability that drew the label, [Cap], if the source knows it; otherwise nil.
	Truth []float32
}

// NewBatch returns an empty batch for up to size examples of shape s.
func NewBatch(size int, s Shape) *Batch {
	b := &Batch{
		Labels: make([]float32, size),
		Dense:  make([]float32, size*s.Dense),
		Keys:   make([]rowraft.Key, size*s.Categorical),
	}
	if s.Truth {
		b.Truth = make([]float32, size)
	}
	return b
}

// Shape is the shape of a source's examples.
type Shape struct {
	Dense, Categorical int
	Truth              bool // true probabilities are known
	Classes            int  // 0: labels are 0 or 1
	Height, Width      int  // the size of an image whose pixels are the dense numbers; otherwise 0
}

// Source is a stream of examples. It is used by one goroutine at a time.
type Source interface {
	// Next fills b with the next examples, up to its capacity, and returns io.EOF when none are left. The last
	// batch may be smaller.
	Next(b *Batch) error
	// Skip skips the next n examples. It returns io.EOF if there are fewer.
	Skip(n int64) error
	Close() error
}

// Share selects examples of a data set: those with From ≤ number < To (To < 0: to the end), of these every
// Trainers-th, the Rank-th first.
type Share struct {
	From, To       int64
	Rank, Trainers int
}

// Set is a data set that can be opened as sources any number of times.
type Set interface {
	Shape() Shape
	// Train and Held open the training examples, split by rank, and the held-out examples.
	Train(rank, trainers int) (Source, error)
	Held() (Source, error)
	// TrainSize is the number of training examples of all trainers together; 0 means no end.
	TrainSize() int64
	// Name describes the data in a few words.
	Name() string
}

// Ranger is a Set whose training examples can be read from any position.
type Ranger interface {
	Set
	// Range opens the training examples with From ≤ number < To.
	Range(from, to int64) (Source, error)
}

// Continuer is a Source of a Ranger that can read on behind its end.
type Continuer interface {
	// Continue makes the source read the training examples with from ≤ number < to next. It returns false, and does
	// nothing, if it has read example from or a later one.
	Continue(from, to int64) bool
}

// separator stands between the name of a feature and a value in the hashed bytes.
const separator = 0

// Hasher computes the keys of one feature. Not safe for concurrent use.
type Hasher struct {
	buf  []byte
	name int // length of name and separator
}

// NewHasher returns the hasher of the feature called name.
func NewHasher(name string) *Hasher {
	return &Hasher{buf: append([]byte(name), separator), name: len(name) + 1}
}

// Key returns the key of value.
func (h *Hasher) Key(value []byte) rowraft.Key {
	h.buf = append(h.buf[:h.name], value...)
	return rowraft.Key(xxh3.Hash(h.buf))
}

func (p Share) validate() error {
	if p.Trainers < 1 || p.Rank < 0 || p.Rank >= p.Trainers {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "rank %d of %d trainers: want a rank from 0 to %d", p.Rank,
			p.Trainers, max(p.Trainers, 1)-1)
	}
	return nil
}
