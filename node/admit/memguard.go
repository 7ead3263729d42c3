package admit

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	rtmetrics "runtime/metrics"
	"strconv"
	"strings"
	"time"

	"github.com/rowraft/rowraft/internal/slab"
	"github.com/rowraft/rowraft/internal/ticks"
)

const (
	memoryLook = 250 * time.Millisecond
	// memoryTrimEvery is the minimum interval at which a full process returns garbage to the system.
	memoryTrimEvery = 10 * time.Second
	// memoryReserve is the memory that all processes together must leave free on the machine.
	memoryReserve = 128 << 20
	// minHeapLimit is the lowest limit for Go's heap: below it Go would spend its time on garbage
	// collection.
	minHeapLimit = 128 << 20
)

// MemoryUse is the memory use of the process and the free memory of the machine, in bytes. A negative
// number is unknown.
type MemoryUse struct {
	Anonymous int64 // resident, without pages of files: rows, Go's heap, stacks
	GoRuntime int64 // part of Anonymous: Go's heap with garbage, stacks, structures
	Left      int64
}

// memoryGuard keeps the process below its memory limit. Rows are off Go's heap, so Go's own limit does not
// count them. The guard gives the heap the memory that the rows leave, and refuses operations that create
// rows if that is too little.
//
// One goroutine runs it.
type memoryGuard struct {
	limit int64
	use   func() MemoryUse
	heap  func(bytes int64) // sets Go's soft limit; nil: the limit stays as it is
	trim  func()            // returns garbage to the system
	a     *Admission
	log   *slog.Logger

	full    bool
	set     int64 // the limit that heap was last called with
	trimmed time.Time
}

func (g *memoryGuard) run(ctx context.Context) {
	t := ticks.New(memoryLook)
	defer t.Stop()
	for {
		g.look(g.use(), time.Now())
		select {
		case <-t.C:
		case <-ctx.Done():
			g.a.setMemory(0, "")
			return
		}
	}
}

// look decides by the current memory use. Above nine tenths of the limit the process is full, until it is
// below seven eighths. The gap prevents a change at every look.
func (g *memoryGuard) look(u MemoryUse, now time.Time) {
	if g.limit <= 0 || u.Anonymous < 0 {
		return
	}
	g.shareHeap(u)
	most := g.limit / 10 * 9
	if g.full {
		most = g.limit / 8 * 7
	}
	reserve := min(int64(memoryReserve), g.limit/64)
	full := u.Anonymous > most || u.Left >= 0 && u.Left < reserve
	if full && now.Sub(g.trimmed) >= memoryTrimEvery {
		g.trimmed = now
		g.trim()
	}
	if full != g.full {
		g.full = full
		g.log.Warn("memory", "full", full, "used_bytes", u.Anonymous, "of_go", u.GoRuntime, "limit_bytes", g.limit,
			"left_on_machine", u.Left)
	}
	why := ""
	if full {
		why = fmt.Sprintf("the server has %d bytes of memory, its limit is %d (--memory-limit-bytes), and the machine has "+
			"%d left: what would make rows is refused until there is room; drop tables, add a server, or give this one more",
			u.Anonymous, g.limit, u.Left)
	}
	g.a.setMemory(u.Anonymous, why)
}

// shareHeap sets the limit of Go's heap to 85 % of the process limit, less all other memory.
func (g *memoryGuard) shareHeap(u MemoryUse) {
	if g.heap == nil || u.GoRuntime < 0 {
		return
	}
	rest := max(u.Anonymous-u.GoRuntime, 0)
	want := max(g.limit/100*85-rest, minHeapLimit)
	if off := want - g.set; off > g.limit/64 || -off > g.limit/64 {
		g.set = want
		g.heap(want)
	}
}

// setMemory stores the memory use and the reason to refuse pushes; "" if there is none.
func (a *Admission) setMemory(used int64, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.memory, a.full = used, why
}

// giveMemoryBack returns unused memory to the system.
func giveMemoryBack() {
	_ = slab.Trim() // an error leaves the memory as it was
	debug.FreeOSMemory()
}

// GuardMemory keeps the process below Limits.Memory until ctx ends. It calls heap, unless nil, with the
// part of the limit that the rows leave to Go's heap. It refuses writes that create rows when the process
// is nearly full. use reads the memory of the process; nil: from /proc.
func (a *Admission) GuardMemory(ctx context.Context, use func() MemoryUse, heap func(bytes int64), log *slog.Logger) {
	if use == nil {
		root := os.DirFS("/")
		use = func() MemoryUse { return readMemory(root) }
	}
	g := &memoryGuard{limit: a.limits.Memory, use: use, heap: heap, trim: giveMemoryBack, a: a, log: log}
	g.run(ctx)
}

func readMemory(root fs.FS) MemoryUse {
	u := MemoryUse{Anonymous: anonymousBytes(root), GoRuntime: goBytes(), Left: -1}
	if left := available(root); left > 0 {
		u.Left = int64(left)
	}
	return u
}

// anonymousBytes returns the resident memory of the process without pages of files, which the system frees
// by itself; -1 if unknown.
func anonymousBytes(root fs.FS) int64 {
	b, err := fs.ReadFile(root, "proc/self/statm")
	fields := strings.Fields(string(b))
	if err != nil || len(fields) < 3 {
		return -1
	}
	resident, err1 := strconv.ParseInt(fields[1], 10, 48)
	shared, err2 := strconv.ParseInt(fields[2], 10, 48)
	if err1 != nil || err2 != nil {
		return -1
	}
	return max(resident-shared, 0) * int64(os.Getpagesize())
}

// goBytes returns the memory that Go's runtime has from the system and has not returned.
func goBytes() int64 {
	s := []rtmetrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	rtmetrics.Read(s)
	if s[0].Value.Kind() != rtmetrics.KindUint64 || s[1].Value.Kind() != rtmetrics.KindUint64 {
		return -1
	}
	return int64(s[0].Value.Uint64()) - int64(s[1].Value.Uint64())
}
