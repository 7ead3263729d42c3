package trainer

import (
	"context"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/trainer/tensor"
)

// TensorRows makes a dense table of c's cluster into the rows that package tensor
// lays tensors out in.
func TensorRows(c *client.Client, t *client.Table) tensor.Rows { return &tensorRows{c, t} }

type tensorRows struct {
	client *client.Client
	table  *client.Table
}

// Pull implements [tensor.Rows]; which keys have a row it tells as of every push that
// anybody had been told of.
func (r *tensorRows) Pull(ctx context.Context, keys []rowraft.Key, rows []float32, present []bool) error {
	s := client.Segment{Table: r.table, Keys: keys, Values: rows, Present: present}
	if present != nil {
		return r.client.PullLinearizable(ctx, s)
	}
	return r.client.Pull(ctx, s)
}

// Push implements [tensor.Rows].
func (r *tensorRows) Push(ctx context.Context, keys []rowraft.Key, grads []float32) error {
	_, err := r.table.Push(ctx, keys, grads)
	return err
}

// Assign implements [tensor.Rows].
func (r *tensorRows) Assign(ctx context.Context, keys []rowraft.Key, rows []float32) error {
	_, err := r.table.Assign(ctx, keys, rows)
	return err
}
