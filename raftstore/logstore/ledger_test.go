package logstore

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft/raftstore/entry"
)

// The ledger against a plain list of entries, through appends, conflicts,
// compaction and installed snapshots.
func TestLedgerModel(t *testing.T) {
	const seed = 7
	rnd := rand.New(rand.NewPCG(seed, 0))
	var g Ledger
	type known struct {
		index uint64
		bytes int64
		own   bool
	}
	var model []known
	last, applied := uint64(0), uint64(0)
	for step := range 5000 {
		switch rnd.IntN(10) {
		default:
			last++
			l := &raft.Log{Index: last, Data: make([]byte, rnd.IntN(50))}
			if rnd.IntN(4) == 0 {
				l.Type = raft.LogNoop
			}
			g.Observe(l)
			model = append(model, known{last, int64(len(l.Data)) + entry.OverheadBytes, l.Type == raft.LogNoop})
		case 0: // conflict: cut above applied
			if last > applied {
				cut := applied + 1 + rnd.Uint64N(last-applied)
				g.removed(cut, last)
				for len(model) > 0 && model[len(model)-1].index >= cut {
					model = model[:len(model)-1]
				}
				last = cut - 1
			}
		case 1: // compaction of applied entries
			if len(model) > 0 && applied >= model[0].index {
				to := model[0].index + rnd.Uint64N(applied-model[0].index+1)
				g.removed(model[0].index, to)
				for len(model) > 0 && model[0].index <= to {
					model = model[1:]
				}
			}
		case 2: // apply up to the next entry that reaches the machine
			for i, e := range model {
				if e.index > applied && !e.own {
					for _, b := range model[:i] {
						if b.index > applied && !b.own {
							t.Fatal("model")
						}
					}
					if !g.Advance(applied, e.index) {
						t.Fatalf("seed %d, step %d: advance(%d, %d) found a gap", seed, step, applied, e.index)
					}
					applied = e.index
					break
				}
			}
		case 3: // a snapshot beyond the log was installed
			if rnd.IntN(20) == 0 {
				if len(model) > 0 {
					g.removed(model[0].index, last)
				}
				model, last = nil, last+10
				applied = last
			}
		}
		var total, above int64
		for _, e := range model {
			total += e.bytes
			if e.index > applied {
				above += e.bytes
			}
		}
		if got := g.Bytes(); got != total {
			t.Fatalf("seed %d, step %d: %d bytes, want %d", seed, step, got, total)
		}
		if got := g.Between(applied, last); got != above {
			t.Fatalf("seed %d, step %d: %d bytes above %d, want %d", seed, step, got, applied, above)
		}
		through := applied
		for _, e := range model {
			if e.index == through+1 && e.own {
				through++
			}
		}
		if got := g.ThroughOwn(applied, last); got != through {
			t.Fatalf("seed %d, step %d: through %d, want %d", seed, step, got, through)
		}
		want := total / 2
		var n uint64
		for sum := int64(0); sum < want; n++ {
			sum += model[len(model)-1-int(n)].bytes
		}
		if got := g.Trailing(want, 1); got != n {
			t.Fatalf("seed %d, step %d: %d trailing entries hold %d bytes, want %d", seed, step, got, want, n)
		}
	}
}

func TestLedgerFindsGap(t *testing.T) {
	var g Ledger
	for i := uint64(1); i <= 5; i++ {
		l := &raft.Log{Index: i}
		if i == 2 {
			l.Type = raft.LogBarrier
		}
		g.Observe(l)
	}
	if !g.Advance(1, 3) {
		t.Error("a barrier counts as a gap")
	}
	if g.Advance(3, 5) {
		t.Error("a left out command is no gap")
	}
}

// NewRaft reads the last entry first, then all from the snapshot on.
func TestLedgerScanOrder(t *testing.T) {
	var g Ledger
	entries := []*raft.Log{{Index: 4}, {Index: 5, Type: raft.LogNoop}, {Index: 6}, {Index: 7, Type: raft.LogNoop}}
	g.Observe(entries[3])
	for _, l := range entries {
		g.Observe(l)
	}
	if got := g.Bytes(); got != 4*entry.OverheadBytes {
		t.Errorf("%d bytes, want %d", got, 4*entry.OverheadBytes)
	}
	if got := g.ThroughOwn(6, 7); got != 7 {
		t.Errorf("through %d, want 7", got)
	}
	if !g.Advance(4, 6) {
		t.Error("entry 5 is raft's own")
	}
}

// The entry of an idle group stays at the head of the ring. Compacted entries of a busy group after it must not stay in
// memory.
func TestEntryCacheLetsGoOfRemovedEntries(t *testing.T) {
	const size = 1 << 20
	c := newEntryCache(4 * size)
	quiet, busy := c.group(), c.group()
	quiet.put([]*raft.Log{{Index: 1, Data: make([]byte, 10)}})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := uint64(1); i <= 64; i++ {
		busy.put([]*raft.Log{{Index: i, Data: make([]byte, size)}})
		busy.remove(0, i)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 8*size {
		t.Errorf("64 entries of 1 MiB were put and removed, and %d MiB are still held", grown>>20)
	}
	var l raft.Log
	if !quiet.get(1, &l) {
		t.Error("the quiet group's entry is gone")
	}
}

func TestEntryCacheIsBoundedByBytes(t *testing.T) {
	c := newEntryCache(10 * (100 + cacheOverheadBytes))
	a, b := c.group(), c.group()
	for i := uint64(1); i <= 100; i++ {
		for _, g := range []*groupCache{a, b} {
			g.put([]*raft.Log{{Index: i, Data: make([]byte, 100)}})
		}
	}
	var l raft.Log
	for i := uint64(1); i <= 100; i++ {
		if got, want := a.get(i, &l), i > 95; got != want {
			t.Errorf("entry %d cached: %v, want %v", i, got, want)
		}
	}
	if got := c.usedBytes(); got > c.limitBytes {
		t.Errorf("%d bytes used, limit %d", got, c.limitBytes)
	}
	// A conflicting entry replaces the cached one; a removed one is gone.
	a.put([]*raft.Log{{Index: 100, Term: 2, Data: make([]byte, 10)}})
	if !a.get(100, &l) || l.Term != 2 {
		t.Errorf("entry 100 has term %d, want 2", l.Term)
	}
	a.remove(90, 200)
	b.remove(0, 1000)
	if a.get(100, &l) || b.get(100, &l) || c.usedBytes() != 0 || c.n != 0 {
		t.Errorf("after removal %d bytes and %d places are used", c.usedBytes(), c.n)
	}
}
