package data

import (
	"github.com/zeebo/xxh3"

	"github.com/rowraft/rowraft"
)

// Batch holds up to Cap examples. [NewBatch] allocates its slices; those of keys grow if features have many values.
type Batch struct {
	N      int       // examples it holds now
	Read   int       // examples of the source that it stands for: N and the bad lines among them
	First  int64     // number of the first example in its source, for messages
	Labels []float32 // [Cap, labels], row-major: 0 or 1, the number of the class if there are more, or a number
	Dense  []float32 // [Cap, dense], row-major
	// Keys are the values of all examples. Those of feature f of example i are Keys[Offsets[i·F+f]:Offsets[i·F+f+1]],
	// where F is the number of categorical features. A feature without [Categorical.Separator] has one value, or none
	// if an exact id is missing.
	Keys    []rowraft.Key
	Offsets []int32   // [Cap·F + 1]; those of the first N examples are valid
	Weights []float32 // of Keys; nil if all are 1
	// Truth is the probability that drew the label, [Cap], if the source knows it; otherwise nil.
	Truth []float32
	Lines *Lines // where the examples stand in their file; nil unless Shape.Lines is set
}

// Lines are the lines of the examples of a batch.
type Lines struct {
	Head      []byte // the first line of the file, if it names the columns; otherwise nil
	Separator byte   // between the values of a line

	text []byte
	ends []int
}

// Line returns the line of example i, without its end. It is valid until the batch is filled again.
func (l *Lines) Line(i int) []byte {
	if i == 0 {
		return l.text[:l.ends[0]]
	}
	return l.text[l.ends[i-1]:l.ends[i]]
}

// add appends the line of the next example.
func (l *Lines) add(c *columns, line []byte) {
	if l == nil {
		return
	}
	l.Head, l.Separator = c.head, c.separator
	l.text = append(l.text, line...)
	l.ends = append(l.ends, len(l.text))
}

// NewBatch returns an empty batch for up to size examples of shape s.
func NewBatch(size int, s Shape) *Batch {
	b := &Batch{
		Labels:  make([]float32, size*max(s.Labels, 1)),
		Dense:   make([]float32, size*s.Dense),
		Keys:    make([]rowraft.Key, 0, size*s.Categorical),
		Offsets: make([]int32, size*s.Categorical+1),
	}
	if s.Weighted {
		b.Weights = make([]float32, 0, cap(b.Keys))
	}
	if s.Truth {
		b.Truth = make([]float32, size)
	}
	if s.Lines {
		b.Lines = new(Lines)
	}
	return b
}

// Shape is the shape of a source's examples.
type Shape struct {
	Dense, Categorical int
	Labels             int  // numbers to predict per example; 0: one
	Numbers            bool // labels are any numbers, not 0 or 1
	Weighted           bool // values of categorical features have weights
	Truth              bool // true probabilities are known
	Lines              bool // batches keep the lines of their examples
	Classes            int  // 0: labels are 0 or 1, or numbers
	Height, Width      int  // the size of an image whose pixels are the dense numbers; otherwise 0
}

// size returns the number of examples that b has room for.
func (b *Batch) size(s Shape) int { return len(b.Labels) / max(s.Labels, 1) }

// Reset makes b empty.
func (b *Batch) Reset() {
	b.N, b.Read, b.Keys = 0, 0, b.Keys[:0]
	if b.Weights != nil {
		b.Weights = b.Weights[:0]
	}
	if b.Lines != nil {
		b.Lines.text, b.Lines.ends = b.Lines.text[:0], b.Lines.ends[:0]
	}
}

// CopyFrom appends example i of a batch of the same shape to b.
func (b *Batch) CopyFrom(from *Batch, i int, s Shape) {
	labels, n := max(s.Labels, 1), b.N
	copy(b.Labels[n*labels:(n+1)*labels], from.Labels[i*labels:])
	copy(b.Dense[n*s.Dense:(n+1)*s.Dense], from.Dense[i*s.Dense:])
	offsets := from.Offsets[i*s.Categorical : (i+1)*s.Categorical+1]
	first, last := offsets[0], offsets[s.Categorical]
	shift := int32(len(b.Keys)) - first
	for f, o := range offsets[1:] {
		b.Offsets[n*s.Categorical+f+1] = o + shift
	}
	b.Keys = append(b.Keys, from.Keys[first:last]...)
	if b.Weights != nil {
		b.Weights = append(b.Weights, from.Weights[first:last]...)
	}
	b.N++
}

// Source is a stream of examples. It is used by one goroutine at a time.
type Source interface {
	// Next fills b with the next examples, up to its capacity, and returns io.EOF when none are left. The last
	// batch may be smaller, and so may one with bad lines.
	Next(b *Batch) error
	// Skip skips the next n examples. It returns io.EOF if there are fewer.
	Skip(n int64) error
	Close() error
}

// Share selects examples of an epoch: those at From ≤ position < To (To < 0: to the end), of these every
// Trainers-th, the Rank-th first.
type Share struct {
	From, To       int64
	Rank, Trainers int
}

// Set is a data set that can be opened as sources any number of times.
type Set interface {
	Shape() Shape
	// Train and Held open the training examples of an epoch, split by rank, and the held-out examples. The order of
	// an epoch's examples depends on its number alone.
	Train(epoch int64, rank, trainers int) (Source, error)
	Held() (Source, error)
	// TrainSize is the number of training examples of all trainers together; 0 means no end.
	TrainSize() int64
	// HeldSize is the number of held-out examples.
	HeldSize() int64
	// Name describes the data in a few words.
	Name() string
}

// Ranger is a Set whose training examples can be read from any position.
type Ranger interface {
	Set
	// Range opens the examples at the positions from ≤ position < to of an epoch.
	Range(epoch, from, to int64) (Source, error)
}

// Continuer is a Source of a Ranger that can read on behind its end.
type Continuer interface {
	// Continue makes the source read the positions from ≤ position < to of an epoch next. It returns false, and does
	// nothing, if it has read them or is in another epoch.
	Continue(epoch, from, to int64) bool
}

// separator stands between the name of a feature and a value in the hashed bytes.
const separator = 0

// own reports whether the share has a position.
func (p *Share) own(position int64) bool {
	return position >= p.From && (p.Trainers == 1 || (position-p.From)%int64(p.Trainers) == int64(p.Rank))
}

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
