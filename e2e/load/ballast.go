package load

import (
	"context"
	"fmt"
	"sync"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
)

// Of the pushes that only fill logs.
const (
	ballastDim     = 2048
	ballastBytes   = 4 * ballastDim
	ballastWorkers = 4
)

// Ballast pushes to one large row of every shard, in a table of its own, until so
// many bytes went into the log of each. It stands in no history.
func (l *Load) Ballast(ctx context.Context, bytesPerShard int64) error {
	c, err := client.Dial(ctx, client.Options{Endpoints: l.opts.Endpoints, Dial: l.opts.Dial, ConnsPerNode: 1})
	if err != nil {
		return err
	}
	defer c.Close()
	table, err := c.CreateTable(ctx, rowraft.Schema{
		Name: "ballast", Kind: rowraft.Sparse, Dim: ballastDim,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
		Memory: 1 << 16, // most rows are on disk
	}, true)
	if err != nil {
		return err
	}
	keys := spread(c, table, len(l.first))
	l.mu.Lock()
	l.ballastRows = len(keys)
	l.mu.Unlock()
	values := make([]float32, len(keys)*ballastDim)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for range ballastWorkers {
		wg.Go(func() {
			for sent := int64(0); sent < bytesPerShard/ballastWorkers; sent += ballastBytes {
				if _, err := table.Push(ctx, keys, values); err != nil {
					cancel(fmt.Errorf("ballast: %w", err))
					return
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// Rows returns between how many rows and how many the shards hold: the counters, and
// what their clients' own pushes, Ballast and the stream of ids may have left.
func (l *Load) Rows() (least, most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.opts.Rows, len(l.keys) + l.ballastRows + streamKeys
}
