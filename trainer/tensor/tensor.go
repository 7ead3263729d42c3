package tensor

import (
	"fmt"
	"math"

	"github.com/rowraft/rowraft"
)

// Limits of a dense key.
const (
	MaxRows    = 1 << 40 // of a tensor
	MaxTensors = 1 << 24 // of a table
)

// Tensor is one tensor of a table: its number, shape and layout. Immutable.
type Tensor struct {
	name   string
	number uint32
	shape  []int64
	width  int64
	size   int64
}

// New describes tensor number `number` of a table whose rows have width weights. Without a shape it is a single
// number.
//
// Errors: CodeInvalidArgument if a dimension is below 1, or it has too many rows.
func New(name string, number uint32, width int, shape ...int64) (*Tensor, error) {
	t := &Tensor{name: name, number: number, shape: append([]int64(nil), shape...), width: int64(width), size: 1}
	if number >= MaxTensors || width < 1 || width > rowraft.MaxDim {
		return nil, invalid("tensor %s: number %d, rows of %d: want a number below %d, and 1 to %d weights a row", name,
			number, width, MaxTensors, rowraft.MaxDim)
	}
	for _, d := range shape {
		if d < 1 {
			return nil, invalid("tensor %s: shape %v: want dimensions ≥ 1", name, shape)
		}
		if t.size > math.MaxInt64/d { // MaxRows × MaxDim is far below
			return nil, invalid("tensor %s: shape %v: more than %d rows of %d", name, shape, int64(MaxRows), width)
		}
		t.size *= d
	}
	if (t.size-1)/t.width >= MaxRows {
		return nil, invalid("tensor %s: shape %v: more than %d rows of %d", name, shape, int64(MaxRows), width)
	}
	return t, nil
}

// Name returns the name of the tensor.
func (t *Tensor) Name() string { return t.name }

// Number returns the tensor's number in its table.
func (t *Tensor) Number() uint32 { return t.number }

// Shape returns a copy of the dimensions.
func (t *Tensor) Shape() []int64 { return append([]int64(nil), t.shape...) }

// Width returns the weights of a row.
func (t *Tensor) Width() int { return int(t.width) }

// Size returns the number of values.
func (t *Tensor) Size() int64 { return t.size }

// Rows returns the number of rows.
func (t *Tensor) Rows() int64 { return (t.size-1)/t.width + 1 }

// Key returns the key of a row, 0 ≤ row < Rows.
func (t *Tensor) Key(row int64) rowraft.Key { return rowraft.DenseKey(t.number, uint64(row)) }

// Place returns the row and column of value i, 0 ≤ i < Size.
func (t *Tensor) Place(i int64) (row int64, column int) { return i / t.width, int(i % t.width) }

// AppendKeys appends the keys of the rows from ≤ row < to, which are ascending.
func (t *Tensor) AppendKeys(keys []rowraft.Key, from, to int64) []rowraft.Key {
	for row := from; row < to; row++ {
		keys = append(keys, t.Key(row))
	}
	return keys
}

// Index returns the number of the value with these indices, row-major.
//
// Errors: CodeInvalidArgument unless there is one index in range for each dimension.
func (t *Tensor) Index(indices ...int64) (int64, error) {
	if len(indices) != len(t.shape) {
		return 0, invalid("tensor %s: %d indices for the shape %v", t.name, len(indices), t.shape)
	}
	at := int64(0)
	for i, x := range indices {
		if x < 0 || x >= t.shape[i] {
			return 0, invalid("tensor %s: indices %v are outside the shape %v", t.name, indices, t.shape)
		}
		at = at*t.shape[i] + x
	}
	return at, nil
}

// check returns an error for values outside the tensor or, for a write, values that are not whole rows.
func (t *Tensor) check(from int64, n int, write bool) error {
	to := from + int64(n)
	if from < 0 || to < from || to > t.size {
		return invalid("tensor %s: values %d to %d of %d", t.name, from, to, t.size)
	}
	if write && (from%t.width != 0 || to%t.width != 0 && to != t.size) {
		return invalid("tensor %s: values %d to %d: only whole rows of %d can be written", t.name, from, to, t.width)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s", fmt.Sprintf(format, args...))
}
