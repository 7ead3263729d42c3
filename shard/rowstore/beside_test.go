package rowstore

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// streamWriter changes a few slots of a table in every way, until stop is closed.
type streamWriter struct {
	table *Table
	keys  []rowraft.Key
	mu    sync.Mutex // held over each change, as the shard's is
	stop  chan struct{}
}

func (w *streamWriter) run(tb testing.TB) {
	r := rand.New(rand.NewPCG(1, 2))
	batch, numbers := make([]rowraft.Key, 16), make([]byte, 4*3*16)
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
	case n == 0:
		return w.table.Delete(batch[:3])
	case n == 1:
		return w.table.Assign(batch[:2], numbers[:24], rowraft.Float32)
	case n == 2 && w.table.schema.Expire > 0:
		_, _, err := w.table.Sweep(rowraft.Slot(r.IntN(4)), &wire.Sweep{Conditions: wire.SweepExpire}, tick)
		return err
	}
	return w.table.Update(batch, numbers, rowraft.Float32, 0.1)
}

// TestSnapshotsBesideAStream: while rows come, change, make room, expire and are
// deleted in the slots that it reads, a snapshot has the rows and candidates of its
// begin.
func TestSnapshotsBesideAStream(t *testing.T) {
	for name, set := range map[string]func(*rowraft.Schema){
		"plain": func(*rowraft.Schema) {},
		"LFU": func(s *rowraft.Schema) {
			s.Capacity = rowraft.Capacity{Rows: 9 * rowraft.NumSlots, Evict: rowraft.EvictLFU}
		},
		"LRU, candidates": func(s *rowraft.Schema) {
			s.Capacity = rowraft.Capacity{Rows: 20 * rowraft.NumSlots, Evict: rowraft.EvictLRU}
			s.Admission = rowraft.Admission{Kind: rowraft.AdmitCount, Count: 2}
		},
		"expiry, candidates": func(s *rowraft.Schema) {
			s.Admission, s.Expire = rowraft.Admission{Kind: rowraft.AdmitCount, Count: 3}, 5
		},
	} {
		t.Run(name, func(t *testing.T) {
			schema := testSchema(rowraft.Sparse, rowraft.Adagrad, 3)
			set(&schema)
			w := &streamWriter{table: mustNew(t, schema), stop: make(chan struct{})}
			for k := rowraft.Key(0); len(w.keys) < 400; k++ {
				if slot, _ := w.table.locate(k); slot < 4 {
					w.keys = append(w.keys, k)
				}
			}
			var wg sync.WaitGroup
			defer wg.Wait()
			defer close(w.stop)
			wg.Go(func() { w.run(t) })
			for range 150 {
				w.snapshot(t)
			}
		})
	}
}

// held is what the slots of a streamWriter hold.
type held struct {
	digest           Digest
	rows, candidates int
}

// snapshot takes one beside the changes and compares it with the table at its begin.
func (w *streamWriter) snapshot(t *testing.T) {
	w.mu.Lock()
	snap, err := w.table.BeginSnapshot()
	want := held{digest: w.table.Digest(), rows: w.table.Rows()}
	for slot := range rowraft.Slot(4) {
		want.candidates += w.table.SlotCandidates(slot)
	}
	w.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	var got held
	for slot := range rowraft.Slot(4) {
		var b []byte
		for done := false; !done; {
			b, done = snap.AppendSlot(b, slot, 1+rand.IntN(40))
		}
		for ; len(b) > 0; b = b[w.table.RecordBytes():] {
			h := xxh3.Hash128(b[keyOffset:w.table.RecordBytes()])
			got.digest = got.digest.Add(Digest{Hi: h.Hi, Lo: h.Lo})
			got.rows++
		}
		for b = snap.AppendCandidates(nil, slot); len(b) > 0; b = b[CandidateBytes:] {
			got.digest = got.digest.Add(parseCandidate(b).digest())
			got.candidates++
		}
	}
	if got != want {
		t.Errorf("the snapshot has %+v, the table had %+v", got, want)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for slot := range rowraft.Slot(4) {
		if _, ok := w.table.CheckSlot(slot); !ok {
			t.Errorf("slot %d is not what its digest says", slot)
		}
	}
	if err := snap.End(); err != nil {
		t.Error(err)
	}
}
