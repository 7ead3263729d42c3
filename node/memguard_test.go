package node

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/rowraft/rowraft"
)

func TestMemoryGuard(t *testing.T) {
	const gib = 1 << 30
	a := newAdmission(Limits{InFlight: gib, Shard: gib, Client: gib})
	var heap []int64
	trims := 0
	g := &memoryGuard{limit: 10 * gib, heap: func(b int64) { heap = append(heap, b) }, trim: func() { trims++ }, a: a, log: slog.New(slog.DiscardHandler)}
	now := time.Now()
	for _, tc := range []struct {
		name string
		use  memoryUse
		full bool
	}{
		{"little", memoryUse{anonymous: gib, goRuntime: gib / 2, left: 20 * gib}, false},
		{"just below", memoryUse{anonymous: 9*gib - 10, goRuntime: gib, left: gib}, false},
		{"beyond nine tenths", memoryUse{anonymous: 9*gib + 10, goRuntime: gib, left: gib}, true},
		{"not enough less", memoryUse{anonymous: 9*gib - 10, goRuntime: gib, left: gib}, true},
		{"less", memoryUse{anonymous: 8 * gib, goRuntime: gib, left: gib}, false},
		{"others have taken all", memoryUse{anonymous: gib, goRuntime: gib, left: 1 << 20}, true},
		{"unknown leaves it as it is", memoryUse{anonymous: -1, goRuntime: gib, left: gib}, true},
		{"nothing known of the machine", memoryUse{anonymous: gib, goRuntime: gib, left: -1}, false},
	} {
		g.look(tc.use, now)
		err := a.roomForRows()
		if (err != nil) != tc.full {
			t.Errorf("%s: %v, want full: %v", tc.name, err, tc.full)
		}
		if tc.full && (rowraft.CodeOf(err) != rowraft.CodeOverloaded || !strings.Contains(err.Error(), "--memory-limit-bytes")) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	if trims != 1 {
		t.Errorf("garbage was given back %d times within 10 s, want once", trims)
	}
	// What rows leave of 85 %: of 10 GiB with half a GiB of them, then 8 GiB.
	if len(heap) < 2 || heap[0] != 10*gib/100*85-gib/2 || heap[1] != 10*gib/100*85-(8*gib-10) {
		t.Errorf("Go's heap was told %v", heap)
	}
	g.look(memoryUse{anonymous: 9 * gib, goRuntime: 0, left: gib}, now)
	if heap[len(heap)-1] != minHeapLimit {
		t.Errorf("with nothing left Go's heap was told %d, want %d", heap[len(heap)-1], minHeapLimit)
	}
}

func TestAnonymousMemoryIsRead(t *testing.T) {
	for text, want := range map[string]int64{"": -1, "5 x 1 1": -1, "900 20 5 1 0 9 0": 15 * 4096, "900 5 20 1": 0} {
		if got := anonymousBytes(fstest.MapFS{"proc/self/statm": {Data: []byte(text)}}); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	if goBytes() <= 0 {
		t.Error("Go has no memory")
	}
}

// TestPushesAreRefusedWithoutMemory: what would make rows is refused while the process
// is full and taken again when it is not; reads and deletes go on.
func TestPushesAreRefusedWithoutMemory(t *testing.T) {
	var used atomic.Int64
	c := startClusterWith(t, 1, 1, func(cfg *Config) {
		cfg.Limits.Memory = 1 << 30
		cfg.memoryUse = func() memoryUse { return memoryUse{anonymous: used.Load(), goRuntime: -1, left: -1} }
	})
	cl, ctx := c.dial(), testContext(t)
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
	c.nodes[0].awaitMetric(t, `rowraft_admission_refused_total{reason="memory"}`, func(v float64) bool { return v > 0 })
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
