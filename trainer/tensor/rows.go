package tensor

import (
	"context"
	"fmt"

	"github.com/rowraft/rowraft"
)

// Rows is the dense table that holds tensors. Implementations keep none of the slices in their arguments.
type Rows interface {
	// Pull fills rows with the weights of keys, which ascend strictly. Unless present is nil it reports which keys
	// have a row.
	Pull(ctx context.Context, keys []rowraft.Key, rows []float32, present []bool) error
	// Push applies gradients, Assign sets weights, each exactly once.
	Push(ctx context.Context, keys []rowraft.Key, grads []float32) error
	Assign(ctx context.Context, keys []rowraft.Key, rows []float32) error
}

// chunkBytes limits what one call to Rows moves, but for a single row.
const chunkBytes = 1 << 20

// chunk is a run of rows in one call.
type chunk struct {
	from, to int64 // rows
	keys     []rowraft.Key
	rows     []float32
}

// each calls f for the rows that hold values from ≤ i < to, some at a time.
func (t *Tensor) each(from, to int64, f func(c *chunk) error) error {
	if from == to {
		return nil
	}
	most := max(chunkBytes/(4*t.width), 1)
	c := &chunk{}
	last := (to-1)/t.width + 1
	for c.from = from / t.width; c.from < last; c.from = c.to {
		c.to = min(c.from+most, last)
		c.keys = t.AppendKeys(c.keys[:0], c.from, c.to)
		if n := int((c.to - c.from) * t.width); cap(c.rows) < n {
			c.rows = make([]float32, n)
		} else {
			c.rows = c.rows[:n]
		}
		if err := f(c); err != nil {
			return fmt.Errorf("tensor %s: rows %d to %d: %w", t.name, c.from, c.to, err)
		}
	}
	return nil
}

// Read fills dst with the values from value from on.
//
// Errors: CodeInvalidArgument if there are not as many; those of r.
func (t *Tensor) Read(ctx context.Context, r Rows, from int64, dst []float32) error {
	if err := t.check(from, len(dst), false); err != nil {
		return err
	}
	return t.each(from, from+int64(len(dst)), func(c *chunk) error {
		if err := r.Pull(ctx, c.keys, c.rows, nil); err != nil {
			return err
		}
		// The first row may begin before from, and the last one end after dst.
		skip := max(from-c.from*t.width, 0)
		copy(dst[max(c.from*t.width-from, 0):], c.rows[skip:])
		return nil
	})
}

// Push applies the gradients of the values from value from on, exactly once for each call to r: after an error some
// rows may have theirs.
//
// Errors: CodeInvalidArgument unless they belong to whole rows; those of r.
func (t *Tensor) Push(ctx context.Context, r Rows, from int64, grads []float32) error {
	return t.write(from, grads, func(c *chunk) error { return r.Push(ctx, c.keys, c.rows) })
}

// Assign is Push that sets the values.
func (t *Tensor) Assign(ctx context.Context, r Rows, from int64, values []float32) error {
	return t.write(from, values, func(c *chunk) error { return r.Assign(ctx, c.keys, c.rows) })
}

func (t *Tensor) write(from int64, values []float32, f func(c *chunk) error) error {
	if err := t.check(from, len(values), true); err != nil {
		return err
	}
	return t.each(from, from+int64(len(values)), func(c *chunk) error {
		clear(c.rows[copy(c.rows, values[c.from*t.width-from:]):]) // the padding
		return f(c)
	})
}

// Fill assigns every value: fill is called for one run after another and writes the
// values from value from on to dst.
func (t *Tensor) Fill(ctx context.Context, r Rows, fill func(from int64, dst []float32)) error {
	return t.each(0, t.size, func(c *chunk) error {
		from := c.from * t.width
		n := min(t.size-from, int64(len(c.rows)))
		fill(from, c.rows[:n])
		clear(c.rows[n:])
		return r.Assign(ctx, c.keys, c.rows)
	})
}

// Complete reports whether every row exists: some client has pushed or assigned it.
func (t *Tensor) Complete(ctx context.Context, r Rows) (bool, error) {
	var present []bool
	complete := true
	err := t.each(0, t.size, func(c *chunk) error {
		if !complete {
			return nil
		}
		if cap(present) < len(c.keys) {
			present = make([]bool, len(c.keys))
		}
		present = present[:len(c.keys)]
		if err := r.Pull(ctx, c.keys, c.rows, present); err != nil {
			return err
		}
		for _, there := range present {
			complete = complete && there
		}
		return nil
	})
	return complete && err == nil, err
}
