package rowstore

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/zeebo/xxh3"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard/rowstore/candidate"
	"github.com/rowraft/rowraft/shard/rowstore/order"
	"github.com/rowraft/rowraft/wire"
)

// streamSlots are slots on three pages of cuts.
var streamSlots = []rowraft.Slot{0, 1, 2, cutsPerPage, cutsPerPage + 1, 3*cutsPerPage - 1}

// streamWriter changes the streamSlots of a table in every way, until stop is closed.
type streamWriter struct {
	table *Table
	keys  []rowraft.Key
	mu    sync.Mutex   // held during each change, as the shard's lock is
	life  sync.RWMutex // held for reading during each read, and for writing at the end of a snapshot
	stop  chan struct{}
}

func (w *streamWriter) run(tb testing.TB) {
	r := rand.New(rand.NewPCG(1, 2))
	batch, numbers := make([]rowraft.Key, 16), make([]byte, 4*w.table.index.dim*16)
	for i := uint32(0); ; i++ {
		select {
		case <-w.stop:
			return
		default:
		}
		for j := range batch {
			batch[j] = w.keys[r.IntN(len(w.keys))]
		}
		for j := 0; j < len(numbers); j += 4 {
			binary.LittleEndian.PutUint32(numbers[j:], 0x3f800000|r.Uint32N(1<<20))
		}
		if err := w.change(r, batch, numbers, i/100); err != nil {
			tb.Error(err)
			return
		}
	}
}

func (w *streamWriter) change(r *rand.Rand, batch []rowraft.Key, numbers []byte, tick uint32) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.table.SetTick(tick)
	switch n := r.IntN(10); {
	case n == 3 && w.table.Tier() != nil:
		return w.table.Tier().Prefetch(batch)
	case n == 0:
		return w.table.Delete(batch[:3])
	case n == 1:
		return w.table.Assign(batch[:2], numbers[:8*w.table.index.dim], rowraft.Float32)
	case n == 2 && w.table.schema.Expire > 0:
		_, _, err := w.table.Sweep(streamSlots[r.IntN(len(streamSlots))], &wire.Sweep{Conditions: wire.SweepExpire}, tick)
		return err
	}
	return w.table.Update(batch, numbers, rowraft.Float32, 0.1)
}

// TestSnapshotsDuringChanges: rows are created, changed, evicted, expired and deleted in the slots that a
// snapshot reads. The snapshot has the rows and candidates of its begin, and so has a second one that runs
// at the same time.
func TestSnapshotsDuringChanges(t *testing.T) {
	for name, set := range map[string]func(*rowraft.Schema){
		"plain":           func(*rowraft.Schema) {},
		"images in lines": func(s *rowraft.Schema) { s.Dim = 64 },
		"LFU": func(s *rowraft.Schema) {
			s.Capacity = rowraft.Capacity{Rows: 9 * rowraft.DefaultSlots, Evict: rowraft.EvictLFU}
		},
		"LRU, candidates": func(s *rowraft.Schema) {
			s.Capacity = rowraft.Capacity{Rows: 20 * rowraft.DefaultSlots, Evict: rowraft.EvictLRU}
			s.Admission = rowraft.Admission{Kind: rowraft.AdmitCount, Count: 2}
		},
		"tiered":        func(*rowraft.Schema) {},
		"tiered, lines": func(s *rowraft.Schema) { s.Dim = 64 },
		"tiered, LFU": func(s *rowraft.Schema) {
			s.Capacity = rowraft.Capacity{Rows: 9 * rowraft.DefaultSlots, Evict: rowraft.EvictLFU}
		},
		"tiered, expiry": func(s *rowraft.Schema) { s.Expire = 5 },
		"expiry, candidates": func(s *rowraft.Schema) {
			s.Admission, s.Expire = rowraft.Admission{Kind: rowraft.AdmitCount, Count: 3}, 5
		},
	} {
		t.Run(name, func(t *testing.T) {
			schema := testSchema(rowraft.Sparse, rowraft.Adagrad, 3)
			set(&schema)
			w := &streamWriter{table: mustNew(t, schema), stop: make(chan struct{})}
			if strings.HasPrefix(name, "tiered") {
				withTier(w.table, 4000)
			}
			for k := rowraft.Key(0); len(w.keys) < 400; k++ {
				if slot, _ := w.table.index.locate(k); slices.Contains(streamSlots, slot) {
					w.keys = append(w.keys, k)
				}
			}
			var wg sync.WaitGroup
			defer wg.Wait()
			defer close(w.stop)
			wg.Go(func() { w.run(t) })
			var readers sync.WaitGroup
			for range MaxSnapshots {
				readers.Go(func() {
					for range 100 {
						w.snapshot(t)
					}
				})
			}
			readers.Wait()
		})
	}
}

// held is the content of the slots of a streamWriter.
type held struct {
	digest           Digest
	rows, candidates int
}

// snapshot takes a snapshot during the changes and compares it with the table at its begin.
func (w *streamWriter) snapshot(t *testing.T) {
	w.mu.Lock()
	snap, err := w.table.BeginSnapshot()
	want := held{digest: w.table.Digest(), rows: w.table.Rows()}
	for _, slot := range streamSlots {
		want.candidates += w.table.SlotCandidates(slot)
	}
	w.mu.Unlock()
	if err != nil {
		t.Error(err)
		return
	}
	var got held
	for _, slot := range streamSlots {
		var b []byte
		for done := false; !done; {
			w.life.RLock()
			b, done = snap.AppendSlot(b, slot, 1+rand.IntN(40))
			w.life.RUnlock()
		}
		for ; len(b) > 0; b = b[w.table.RecordBytes():] {
			h := xxh3.Hash128(b[keyOffset:w.table.RecordBytes()])
			got.digest = got.digest.Add(Digest{Hi: h.Hi, Lo: h.Lo})
			got.rows++
		}
		w.life.RLock()
		b = snap.AppendCandidates(b, slot)
		w.life.RUnlock()
		for ; len(b) > 0; b = b[CandidateBytes:] {
			got.digest = got.digest.Add(candidateDigest(candidate.Parse(b)))
			got.candidates++
		}
	}
	if got != want {
		t.Errorf("the snapshot has %+v, the table had %+v", got, want)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, slot := range streamSlots {
		if _, _, ok := w.table.CheckSlot(slot, 1<<30); !ok {
			t.Errorf("slot %d does not match its digest", slot)
		}
	}
	w.life.Lock()
	defer w.life.Unlock()
	if err := snap.End(); err != nil {
		t.Error(err)
	}
}

// TestReaderAndWriterAreNeverInOneSlot: after the reader has entered a slot, the writer is not in it, and
// the reader sees all that the writer did there, including what it wrote past the caches. This holds for
// loose and for strict claims, each time that the reader approaches the slot.
func TestReaderAndWriterAreNeverInOneSlot(t *testing.T) {
	table := mustNew(t, testSchema(rowraft.Sparse, rowraft.Adagrad, 64))
	snap, err := table.BeginSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	const shared, ofWriter, ofReader = rowraft.Slot(0), 20 * cutsPerPage, 10 * cutsPerPage
	const words = 16
	var begun, ended uint64
	mem := make([]uint64, words+8+order.LineBytes/8)
	image := unsafe.Add(unsafe.Pointer(&mem[0]), -uintptr(unsafe.Pointer(&mem[0]))&(order.LineBytes-1))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		var src [words]uint64
		for n := uint64(1); ; n++ {
			if n%64 == 0 {
				select {
				case <-stop:
					table.snaps.done()
					return
				default:
				}
			}
			table.snaps.claim(shared)
			begun = n
			for i := range src {
				src[i] = n
			}
			order.Stream(image, unsafe.Pointer(&src[0]), 8*words, n)
			ended = n
			if table.snaps.claim(ofWriter); n%16 == 0 {
				table.snaps.done()
			}
		}
	})
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		snap.enter(shared)
		n, whole := begun, begun == ended
		for _, w := range unsafe.Slice((*uint64)(image), words+1) {
			whole = whole && w == n
		}
		if snap.exit(); !whole {
			t.Errorf("the writer was at %d and %d, and the image has %d", n, ended, unsafe.Slice((*uint64)(image), words+1))
			break
		}
		snap.enter(ofReader)
		snap.exit()
	}
	close(stop)
	wg.Wait()
	if err := snap.End(); err != nil {
		t.Error(err)
	}
}
