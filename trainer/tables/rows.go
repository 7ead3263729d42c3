package tables

import (
	"context"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/trainer/tensor"
)

// TensorRows returns a dense table of c's cluster as the rows that package tensor uses.
func TensorRows(c *client.Client, t *client.Table) tensor.Rows { return &tensorRows{c, t} }

type tensorRows struct {
	client *client.Client
	table  *client.Table
}

// Pull implements [tensor.Rows]. It sees every push that was acknowledged before the call.
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
