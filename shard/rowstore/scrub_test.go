package rowstore

import (
	"math/rand/v2"
	"testing"

	"github.com/rowraft/rowraft"
)

// TestCheckSlotFindsEveryBit: CheckSlot finds a flip of any bit that the digest covers, in a row of any
// shape, an index entry that points to another place, and a missing index entry.
func TestCheckSlotFindsEveryBit(t *testing.T) {
	for _, storage := range []rowraft.DType{rowraft.Float32, rowraft.BFloat16} {
		schema := testSchema(rowraft.Sparse, rowraft.Adagrad, 3)
		schema.Storage = storage
		tb := mustNew(t, schema)
		var keys []rowraft.Key
		for k := range rowraft.Key(40) {
			keys = append(keys, k)
		}
		grads := make([]byte, 4*3*len(keys))
		for i := range grads {
			grads[i] = byte(i % 64)
		}
		if err := tb.Update(keys, grads, rowraft.Float32, 0.1); err != nil {
			t.Fatal(err)
		}
		if err := tb.Delete(keys[:5]); err != nil {
			t.Fatal(err)
		}
		clean := func(s rowraft.Slot) bool {
			n, _, ok := tb.CheckSlot(s, 1<<30)
			if ok && n != tb.SlotCounts(s).Rows*tb.RecordBytes() {
				t.Fatalf("slot %d: read %d bytes of %d rows", s, n, tb.SlotCounts(s).Rows)
			}
			return ok
		}
		rows := 0
		for s := range rowraft.Slot(rowraft.DefaultSlots) {
			if !clean(s) {
				t.Fatalf("CheckSlot reports damage in slot %d, which is not damaged", s)
			}
			rows += tb.SlotCounts(s).Rows
		}
		if rows != 35 {
			t.Fatalf("%d rows, want 35", rows)
		}
		key := keys[7]
		slot, tag := tb.index.locate(key)
		r, ok := tb.index.find(slot, tag, key)
		if !ok {
			t.Fatal("the row is gone")
		}
		b := tb.index.bytes(r)
		for i := tb.index.lead; i < len(b); i++ {
			for bit := range 8 {
				b[i] ^= 1 << bit
				if clean(slot) {
					t.Errorf("%v: bit %d of byte %d of a record: not found", storage, bit, i)
				}
				b[i] ^= 1 << bit
			}
		}
		seg := tb.index.slots[slot].whole.root.load()
		for i, e := range seg {
			if e == 0 || e == tombstone {
				continue
			}
			for bit := range 64 {
				if seg[i] ^= 1 << bit; clean(slot) {
					t.Errorf("%v: bit %d of an entry of the index: not found", storage, bit)
				}
				seg[i] = e
			}
			if seg[i] = 0; clean(slot) {
				t.Errorf("%v: an entry that is gone: not found", storage)
			}
			seg[i] = e
		}
		if !clean(slot) {
			t.Error("the slot was put right, and is found damaged")
		}
	}
}

func TestCheckSlotFindsEveryBitOfCandidates(t *testing.T) {
	schema := testSchema(rowraft.Sparse, rowraft.SGD, 1)
	schema.Admission = rowraft.Admission{Kind: rowraft.AdmitCount, Count: 3}
	tb := mustNew(t, schema)
	mustUpdate(t, tb, []rowraft.Key{5}, []float32{1})
	slot, _ := tb.index.locate(5)
	if n, _, ok := tb.CheckSlot(slot, 1<<30); n != CandidateBytes || !ok {
		t.Fatalf("read %d bytes, ok: %v", n, ok)
	}
	words := tb.track.slots[slot].Words
	for i := range words {
		for bit := range 64 {
			if i%2 == 1 && bit >= 32 {
				continue // the tick, which the digest excludes, or an empty entry
			}
			if i%2 == 0 && words[i+1] == 0 {
				continue // the key of an empty entry
			}
			words[i] ^= 1 << bit
			if _, _, ok := tb.CheckSlot(slot, 1<<30); ok {
				t.Errorf("bit %d of word %d: not found", bit, i)
			}
			words[i] ^= 1 << bit
		}
	}
}

// TestCheckSlotInSteps checks a slot with a directory in many calls. Between them rows change, are created
// and deleted, segments split, and places are reused. The check reports no damage where there is none, and
// finds each damaged row that no change overwrites.
func TestCheckSlotInSteps(t *testing.T) {
	for _, admit := range []bool{false, true} {
		rng := rand.New(rand.NewPCG(16, 64))
		schema := testSchema(rowraft.Sparse, rowraft.Adagrad, 2)
		if admit {
			schema.Admission = rowraft.Admission{Kind: rowraft.AdmitCount, Count: 2}
		}
		table := mustNew(t, schema)
		table.index.longest = 32
		pool := chosenKeys(schema.ID, 3000, true, false)
		slot := table.index.slotOf(pool[0])
		live := 300
		change := func() {
			var keys []rowraft.Key
			for range rng.IntN(60) {
				keys = append(keys, pool[rng.IntN(live)])
			}
			if live = min(live+rng.IntN(8), len(pool)); rng.IntN(3) == 0 {
				mustDelete(t, table, keys...)
				return
			}
			mustUpdate(t, table, keys, make([]float32, 2*len(keys)))
		}
		for range 20 {
			change()
		}
		checks, calls := 0, 0
		for ; checks < 300; checks++ {
			damagedAt, damaged := -1, (*byte)(nil)
			if checks%3 == 2 {
				damagedAt = rng.IntN(4)
			}
			for call, done := 0, false; !done; call++ {
				if call == damagedAt {
					key := rowraft.Key(0)
					for _, k := range listed(table, slot) {
						key = k
					}
					_, tag := table.index.locate(key)
					r, _ := table.index.find(slot, tag, key)
					damaged = &table.index.weights(r)[0]
					// The next check finds damage in rows that this check has passed.
					if table.index.check.checked(&table.index, tag, r) && table.index.check.active {
						damaged = nil
					} else {
						*damaged ^= 4
					}
				}
				most := 1 + rng.IntN(4000)
				size, end, ok := table.CheckSlot(slot, most)
				if size > most+table.RecordBytes()+CandidateBytes*table.SlotCandidates(slot) {
					t.Fatalf("%d bytes in a call with limit %d", size, most)
				}
				if done = end; done && ok != (damaged == nil) {
					t.Fatalf("check %d ends with %v after %d calls; a row is damaged: %v", checks, ok, call+1, damaged != nil)
				}
				if calls++; !done && damaged == nil {
					change()
				}
			}
			if damaged != nil {
				*damaged ^= 4
			}
			change()
		}
		if calls < 3*checks || table.index.slots[slot].directory.Load() == nil {
			t.Errorf("%d calls in %d checks", calls, checks)
		}
		if n := len(table.index.check.outgrown); n > 0 {
			t.Errorf("%d segments are kept for a check that has ended", n)
		}
	}
}
