package load

import (
	"context"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
)

// Fill creates tables of three kinds with rows rows each, for tests of checkpoints: emb with optimizer state, dense,
// and stream with admission, expiry and a capacity. 500 more keys of stream wait for a row.
func Fill(ctx context.Context, cl *client.Client, rows int) error {
	uniform := rowraft.Initializer{Kind: rowraft.InitUniform, Seed: 3, A: -1, B: 1}
	for _, s := range []rowraft.Schema{
		{Name: "emb", Kind: rowraft.Sparse, Dim: 8, Initializer: uniform,
			Optimizer: rowraft.Optimizer{Kind: rowraft.Adagrad, LR: 0.1, InitialAccumulator: 0.1}},
		{Name: "dense", Kind: rowraft.Dense, Dim: 16, Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
			Optimizer: rowraft.Optimizer{Kind: rowraft.Adam, LR: 0.1, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8}},
		{Name: "stream", Kind: rowraft.Sparse, Dim: 4, Initializer: uniform,
			Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 0.1},
			Admission: rowraft.Admission{Kind: rowraft.AdmitCount, Count: 2}, Expire: 1 << 30,
			Capacity: rowraft.Capacity{Rows: 1 << 20, Evict: rowraft.EvictLFU}},
	} {
		table, err := cl.CreateTable(ctx, s, true)
		if err != nil {
			return err
		}
		keys, grads := make([]rowraft.Key, rows), make([]float32, rows*s.Dim)
		for i := range keys {
			keys[i] = rowraft.Key(i * 7919)
			if s.Kind == rowraft.Dense {
				keys[i] = rowraft.DenseKey(uint32(i%5), uint64(i))
			}
		}
		for i := range grads {
			grads[i] = float32(i%17) - 8
		}
		for range 3 {
			if _, err := table.Push(ctx, keys, grads); err != nil {
				return err
			}
		}
		if s.Name != "stream" {
			continue
		}
		waiting := make([]rowraft.Key, 500)
		for i := range waiting {
			waiting[i] = rowraft.Key(1<<40 + i)
		}
		if _, err := table.Push(ctx, waiting, make([]float32, s.Dim*len(waiting))); err != nil {
			return err
		}
	}
	return nil
}
