package admit

import (
	"log/slog"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/rowraft/rowraft"
)

func TestMemoryGuard(t *testing.T) {
	const gib = 1 << 30
	a := New(Limits{InFlight: gib, Shard: gib, Client: gib})
	var heap []int64
	trims := 0
	g := &memoryGuard{limit: 10 * gib, heap: func(b int64) { heap = append(heap, b) }, trim: func() { trims++ }, a: a,
		log: slog.New(slog.DiscardHandler)}
	now := time.Now()
	for _, tc := range []struct {
		name string
		use  MemoryUse
		full bool
	}{
		{"little", MemoryUse{Anonymous: gib, GoRuntime: gib / 2, Left: 20 * gib}, false},
		{"just below", MemoryUse{Anonymous: 9*gib - 10, GoRuntime: gib, Left: gib}, false},
		{"beyond nine tenths", MemoryUse{Anonymous: 9*gib + 10, GoRuntime: gib, Left: gib}, true},
		{"not enough less", MemoryUse{Anonymous: 9*gib - 10, GoRuntime: gib, Left: gib}, true},
		{"less", MemoryUse{Anonymous: 8 * gib, GoRuntime: gib, Left: gib}, false},
		{"others have taken all", MemoryUse{Anonymous: gib, GoRuntime: gib, Left: 1 << 20}, true},
		{"unknown leaves it as it is", MemoryUse{Anonymous: -1, GoRuntime: gib, Left: gib}, true},
		{"nothing known of the machine", MemoryUse{Anonymous: gib, GoRuntime: gib, Left: -1}, false},
	} {
		g.look(tc.use, now)
		err := a.CheckMemory()
		if (err != nil) != tc.full {
			t.Errorf("%s: %v, want full: %v", tc.name, err, tc.full)
		}
		if tc.full && (rowraft.CodeOf(err) != rowraft.CodeOverloaded ||
			!strings.Contains(err.Error(), "--memory-limit-bytes") || !strings.Contains(err.Error(), " left: ")) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	if trims != 1 {
		t.Errorf("garbage was given back %d times within 10 s, want once", trims)
	}
	// The expected values are 85 % of 10 GiB, less the rows: half a GiB of them first, then 8 GiB.
	if len(heap) < 2 || heap[0] != 10*gib/100*85-gib/2 || heap[1] != 10*gib/100*85-(8*gib-10) {
		t.Errorf("Go's heap was told %v", heap)
	}
	g.look(MemoryUse{Anonymous: 9 * gib, GoRuntime: 0, Left: gib}, now)
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
