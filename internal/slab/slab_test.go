package slab

import (
	"bytes"
	"math/bits"
	"math/rand/v2"
	"os"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
)

func mustNew(tb testing.TB, recordBytes int) *Slab {
	tb.Helper()
	s, err := New(recordBytes)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

func mustAlloc(tb testing.TB, s *Slab) Place {
	tb.Helper()
	p, err := s.Alloc()
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func TestRecordsKeepAddressAndContents(t *testing.T) {
	// With so many large records the list of chunks grows several times.
	const recordBytes = 24 << 10
	s := mustNew(t, recordBytes)
	n := 33 * chunkBytes / recordBytes
	addrs := make([]unsafe.Pointer, n)
	for i := range addrs {
		p := mustAlloc(t, s)
		if p != Place(i) {
			t.Fatalf("allocation %d got place %d: fresh places are handed out in order", i, p)
		}
		addrs[i] = s.At(p)
		if i%97 == 0 {
			*(*uint64)(addrs[i]) = uint64(i)
			*(*uint64)(unsafe.Add(addrs[i], recordBytes-8)) = ^uint64(i)
		}
	}
	for i, a := range addrs {
		if s.At(Place(i)) != a {
			t.Fatalf("record %d moved from %p to %p", i, a, s.At(Place(i)))
		}
		if i%97 == 0 && (*(*uint64)(a) != uint64(i) || *(*uint64)(unsafe.Add(a, recordBytes-8)) != ^uint64(i)) {
			t.Fatalf("record %d holds %x and %x", i, *(*uint64)(a), *(*uint64)(unsafe.Add(a, recordBytes-8)))
		}
	}
	st := s.Stats()
	if st.UsedBytes != int64(n)*recordBytes || st.MappedBytes < st.UsedBytes ||
		st.MappedBytes > st.UsedBytes+34*recordBytes+chunkBytes {
		t.Errorf("stats %+v after %d records of %d bytes", st, n, recordBytes)
	}
}

func TestFreedPlacesAreReused(t *testing.T) {
	s := mustNew(t, 32)
	for range 100 {
		mustAlloc(t, s)
	}
	for p := Place(10); p < 20; p++ {
		s.Free(p)
	}
	if used := s.Stats().UsedBytes; used != 90*32 {
		t.Errorf("%d bytes used after freeing 10 of 100 records of 32, want %d", used, 90*32)
	}
	seen := map[Place]bool{}
	for range 10 {
		p := mustAlloc(t, s)
		if p < 10 || p >= 20 || seen[p] {
			t.Fatalf("got place %d, want each of 10 … 19 once", p)
		}
		seen[p] = true
	}
	if p := mustAlloc(t, s); p != 100 {
		t.Errorf("got place %d when no freed one was left, want 100", p)
	}
}

// TestSmallTablesAreSmall makes the memory of a thousand small tables: each counts two pages, and the kernel's limit on
// mappings is far away.
func TestSmallTablesAreSmall(t *testing.T) {
	before := mappings(t)
	for range 1000 {
		s := mustNew(t, 152)
		mustAlloc(t, s)
		var b Blocks
		t.Cleanup(func() {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
		if _, err := b.Alloc(minBlockWords); err != nil {
			t.Fatal(err)
		}
		if s, b := s.Stats().MappedBytes, b.Stats().MappedBytes; s > minFirst || b > minFirst {
			t.Fatalf("a record counts as %d bytes and a block as %d, want at most %d", s, b, minFirst)
		}
	}
	if more := mappings(t) - before; more > 500 {
		t.Errorf("the memory of 1,000 tables has %d mappings, want at most 500", more)
	}
}

// mappings returns the number of memory mappings of the process, 0 if the system does not say.
func mappings(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Logf("mappings are not counted: %v", err)
	}
	return bytes.Count(b, []byte{'\n'})
}

// TestFirstChunksAreZeroAgain writes to a first chunk and gives it back: its next user finds zeros.
func TestFirstChunksAreZeroAgain(t *testing.T) {
	p := newPool()
	for range 2 {
		c, err := p.takeFirst()
		if err != nil {
			t.Fatal(err)
		}
		mem := unsafe.Slice((*byte)(c), chunkBytes)
		for i := 0; i < len(mem); i += minFirst {
			if mem[i] != 0 {
				t.Fatalf("byte %d of a first chunk is %d, want 0", i, mem[i])
			}
			mem[i] = 1
		}
		if err := p.giveFirst(c); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNewRefusesRecordSizes(t *testing.T) {
	for _, n := range []int{-8, 0, 12, chunkBytes} {
		if _, err := New(n); rowraft.CodeOf(err) != rowraft.CodeInternal {
			t.Errorf("New(%d): %v, want CodeInternal", n, err)
		}
	}
}

func TestCloseEmptiesTheSlab(t *testing.T) {
	s := mustNew(t, 64)
	for range 100000 {
		mustAlloc(t, s)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st != (Stats{}) {
		t.Errorf("stats %+v after Close, want zero", st)
	}
	if p := mustAlloc(t, s); p != 0 {
		t.Errorf("first place after Close is %d, want 0", p)
	}
}

// TestBlocksAgainstModel allocates and frees blocks at random: no two overlap, each is zero after Alloc,
// and written words stay.
func TestBlocksAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var b Blocks
		defer b.Close()
		type held struct {
			words []uint64
			mark  uint64
		}
		var live []held
		var used int64
		mark := uint64(0)
		rt.Repeat(map[string]func(*rapid.T){
			"alloc": func(rt *rapid.T) {
				n := minBlockWords << rapid.IntRange(0, maxOrder+1).Draw(rt, "order")
				words, err := b.Alloc(n)
				if err != nil {
					rt.Fatal(err)
				}
				if len(words) != n {
					rt.Fatalf("Alloc(%d) returned %d words", n, len(words))
				}
				mark++
				for i, w := range words {
					if w != 0 {
						rt.Fatalf("word %d of a new block of %d is %x, want 0", i, n, w)
					}
					words[i] = mark
				}
				live = append(live, held{words, mark})
				used += int64(n) * 8
			},
			"free": func(rt *rapid.T) {
				if len(live) == 0 {
					return
				}
				i := rapid.IntRange(0, len(live)-1).Draw(rt, "which")
				used -= int64(len(live[i].words)) * 8
				b.Free(live[i].words)
				live = append(live[:i], live[i+1:]...)
			},
			"close": func(rt *rapid.T) {
				if err := b.Close(); err != nil {
					rt.Fatal(err)
				}
				live, used = nil, 0
			},
			"": func(rt *rapid.T) {
				for _, h := range live {
					for i, w := range h.words {
						if w != h.mark {
							rt.Fatalf("word %d of a block of %d is %x, want %x", i, len(h.words), w, h.mark)
						}
					}
				}
				if st := b.Stats(); st.UsedBytes != used || st.MappedBytes < used {
					rt.Fatalf("stats %+v, want %d used", st, used)
				}
			},
		})
	})
}

// TestBlocksJoinAgain frees all blocks in random order. Afterwards whole chunks are free, so that the
// largest block fits without more memory.
func TestBlocksJoinAgain(t *testing.T) {
	const seed = 5
	rng := rand.New(rand.NewPCG(seed, 0))
	var b Blocks
	defer b.Close()
	var live [][]uint64
	for range 20000 {
		words, err := b.Alloc(minBlockWords << rng.IntN(4))
		if err != nil {
			t.Fatal(err)
		}
		live = append(live, words)
	}
	mapped := b.Stats().MappedBytes
	rng.Shuffle(len(live), func(i, j int) { live[i], live[j] = live[j], live[i] })
	for _, w := range live {
		b.Free(w)
	}
	for range len(b.chunks) {
		if _, err := b.Alloc(minBlockWords << maxOrder); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.Stats().MappedBytes; got != mapped {
		t.Errorf("whole chunks took %d bytes after all blocks were freed, %d were mapped (seed %d)", got, mapped, seed)
	}
}

// TestBlocksDoubling simulates the life of an index: thousands of segments double, one after the other.
// Unused memory must stay a small part.
func TestBlocksDoubling(t *testing.T) {
	const segments, seed = 4096, 6
	rng := rand.New(rand.NewPCG(seed, 0))
	var b Blocks
	defer b.Close()
	live := make([][]uint64, segments)
	for n := minBlockWords; n <= 1024; n *= 2 {
		for _, i := range rng.Perm(segments) {
			words, err := b.Alloc(n)
			if err != nil {
				t.Fatal(err)
			}
			if live[i] != nil {
				b.Free(live[i])
			}
			live[i] = words
		}
		st := b.Stats()
		t.Logf("%d words a segment: %d of %d bytes used (%.2f)",
			n, st.UsedBytes, st.MappedBytes, float64(st.UsedBytes)/float64(st.MappedBytes))
		if bits.Len(uint(n)) > 8 && float64(st.UsedBytes) < 0.7*float64(st.MappedBytes) {
			t.Errorf("%d words a segment: only %d of %d bytes used (seed %d)", n, st.UsedBytes, st.MappedBytes, seed)
		}
	}
}

func TestBlocksRefuseSizes(t *testing.T) {
	var b Blocks
	for _, n := range []int{0, 8, 17, 48} {
		if _, err := b.Alloc(n); rowraft.CodeOf(err) != rowraft.CodeInternal {
			t.Errorf("Alloc(%d): %v, want CodeInternal", n, err)
		}
	}
}

func BenchmarkAllocFree(b *testing.B) {
	s := mustNew(b, 152)
	for b.Loop() {
		p, err := s.Alloc()
		if err != nil {
			b.Fatal(err)
		}
		s.Free(p)
	}
}
