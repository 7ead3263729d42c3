package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
)

// Of the table for streaming ids. Its keys fill slots, wait for rows, lose them to
// others and expire while the load runs; replicas, snapshots and the replay of logs
// must agree on all of it.
const (
	streamRows  = rowraft.DefaultSlots // its capacity in a cluster of so many slots: one row a slot
	streamKeys  = 3 * streamRows / 2
	streamBatch = 60
	streamPause = 200 * time.Millisecond

	streamDeletes = 10 // one call of so many deletes its ids, be they rows or waiting for one
)

// stream is one more client, which stands in no history.
type stream struct {
	c     *client.Client
	table *client.Table
	rng   *rand.Rand
}

func (l *Load) dialStream(ctx context.Context) (*stream, error) {
	c, err := client.Dial(ctx, client.Options{Endpoints: l.opts.Endpoints, Dial: l.opts.Dial, ConnsPerNode: 1})
	if err != nil {
		return nil, fmt.Errorf("stream of ids: %w", err)
	}
	table, err := c.CreateTable(ctx, rowraft.Schema{
		Name: "stream", Kind: rowraft.Sparse, Dim: 2,
		Initializer: rowraft.Initializer{Kind: rowraft.InitUniform, Seed: 5, A: -1, B: 1},
		Optimizer:   rowraft.Optimizer{Kind: rowraft.Adagrad, LR: 0.1, InitialAccumulator: 0.1, Epsilon: 1e-8},
		Admission:   rowraft.Admission{Kind: rowraft.AdmitCount, Count: 2}, Expire: 3,
		Capacity: rowraft.Capacity{Rows: uint64(c.Map().SlotCount()), Evict: rowraft.EvictLFU},
		Memory:   1 << 16, // most rows are on disk
	}, true)
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("stream of ids: %w", err)
	}
	return &stream{c, table, rand.New(rand.NewPCG(l.opts.Seed, 1<<40))}, nil
}

// flow pushes ids of which few come often, and deletes some.
func (l *Load) flow(s *stream, stopping <-chan struct{}) {
	tick := time.NewTicker(streamPause)
	defer tick.Stop()
	for {
		select {
		case <-stopping:
			return
		case <-tick.C:
		}
		keys := make([]rowraft.Key, streamBatch)
		for i := range keys {
			u := s.rng.Float64()
			keys[i] = rowraft.Key(u * u * u * streamKeys)
		}
		slices.Sort(keys)
		keys = slices.Compact(keys)
		grads := make([]float32, 2*len(keys))
		for i := range grads {
			grads[i] = float32(s.rng.NormFloat64())
		}
		var err error
		if s.rng.IntN(streamDeletes) == 0 {
			_, err = s.table.Delete(l.stuck, keys)
		} else {
			_, err = s.table.Push(l.stuck, keys, grads)
		}
		if err != nil {
			if l.stuck.Err() == nil {
				l.problem("stream of ids: %v", err)
			}
			return
		}
		l.streamed.Add(1)
	}
}
