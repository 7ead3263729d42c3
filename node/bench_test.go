package node

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/testutil"
)

// BenchmarkCall measures the whole path in one process: client, servers, log and rows share the cores.
// `rowraft-bench` measures processes.
func BenchmarkCall(b *testing.B) {
	const batch, dim, rows = 8192, 16, 200_000
	for _, op := range []string{"pull", "push"} {
		for _, servers := range []int{1, 3} {
			b.Run(fmt.Sprintf("%s/replicas=%d/keys=%d/dim=%d", op, servers, batch, dim), func(b *testing.B) {
				c := startCluster(b, servers, 1)
				ctx := testutil.Context(b)
				schema := counterSchema("bench")
				schema.Dim, schema.Optimizer = dim, rowraft.Optimizer{Kind: rowraft.Adagrad, LR: 0.01, InitialAccumulator: 0.1}
				cl := c.dial()
				if _, err := cl.CreateTable(ctx, schema, false); err != nil {
					b.Fatal(err)
				}
				var pushed atomic.Int64
				b.SetParallelism(2)
				b.ReportAllocs()
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					own, err := client.Dial(ctx, client.Options{Endpoints: []string{c.nodes[0].addr}, ConnsPerNode: 1})
					if err != nil {
						b.Error(err)
						return
					}
					defer own.Close()
					t, err := own.Table(ctx, "bench")
					if err != nil {
						b.Error(err)
						return
					}
					rng := rand.New(rand.NewPCG(1, 2))
					keys := make([]rowraft.Key, 0, batch)
					for len(keys) < batch {
						keys = append(keys, rowraft.Key(clustermap.Mix64(rng.Uint64N(rows))))
					}
					slices.Sort(keys)
					keys = slices.Compact(keys)
					values := make([]float32, len(keys)*dim)
					for pb.Next() {
						if op == "pull" {
							err = t.Pull(ctx, keys, values)
						} else {
							_, err = t.Push(ctx, keys, values)
						}
						if err != nil {
							b.Error(err)
							return
						}
						pushed.Add(int64(len(keys)))
					}
				})
				b.ReportMetric(float64(pushed.Load())/b.Elapsed().Seconds(), "rows/s")
			})
		}
	}
}
