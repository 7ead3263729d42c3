package node

import (
	"sync/atomic"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/node/admit"
)

// TestPushesAreRefusedWithoutMemory: a full process refuses operations that create rows, and accepts them
// again later. Reads and deletes continue.
func TestPushesAreRefusedWithoutMemory(t *testing.T) {
	var used atomic.Int64
	c := startClusterWith(t, 1, 1, func(cfg *Config) {
		cfg.Limits.Memory = 1 << 30
		cfg.memoryUse = func() admit.MemoryUse { return admit.MemoryUse{Anonymous: used.Load(), GoRuntime: -1, Left: -1} }
	})
	cl, ctx := c.dial(), testutil.Context(t)
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	keys, grads := []rowraft.Key{1, 2}, make([]float32, 8)
	if _, err := table.Push(ctx, keys, grads); err != nil {
		t.Fatal(err)
	}
	used.Store(1 << 30)
	c.nodes[0].awaitMetric(t, "rowraft_memory_full", func(v float64) bool { return v == 1 })
	pushed := make(chan error, 1)
	go func() { _, err := table.Push(ctx, keys, grads); pushed <- err }()
	c.nodes[0].awaitMetric(t, `rowraft_refused_total{reason="memory"}`, func(v float64) bool { return v > 0 })
	if err := table.Pull(ctx, keys, make([]float32, 8)); err != nil {
		t.Errorf("a pull without memory for rows: %v", err)
	}
	other := c.dial()
	mine, err := other.Table(ctx, "user")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mine.Delete(ctx, keys[:1]); err != nil {
		t.Errorf("a delete without memory for rows: %v", err)
	}
	select {
	case err := <-pushed:
		t.Errorf("a push without memory for rows ends: %v", err)
	default:
	}
	used.Store(1 << 20)
	if err := <-pushed; err != nil {
		t.Errorf("once there is memory: %v", err)
	}
}
