package checkpoint

import (
	"bytes"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/testutil"
)

// TestRegroup: a block of one slot becomes blocks of the slots that its keys have in another cluster, with the same
// records, the same digest and the same counter. Regrouped back, the blocks are the first one.
func TestRegroup(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		counts := []rowraft.SlotCount{4096, 8192, 16384, 65536}
		from, to := rapid.SampledFrom(counts).Draw(t, "from"), rapid.SampledFrom(counts).Draw(t, "to")
		s := rowraft.Schema{ID: 77 | rowraft.TableID(rapid.Uint64Range(0, 3).Draw(t, "restore"))<<48, Name: "t",
			Kind: rowraft.Sparse, Dim: 1}
		if rapid.Bool().Draw(t, "dense") {
			s.Kind = rowraft.Dense
		}
		key := rowraft.Key(rapid.Uint64Range(0, 1<<50).Draw(t, "key"))
		b := Block{Slot: Slot{Table: s.ID, Slot: clustermap.SlotOf(s.ID, s.Kind, key, from), Counter: 9, RecordBytes: 28}}
		size, at := b.RecordBytes, recordKey
		candidates := rapid.Bool().Draw(t, "candidates")
		if candidates {
			size, at = candidateSize, 0
		}
		var records []byte
		n := rapid.IntRange(1, 20).Draw(t, "rows")
		for k := key; n > 0; k++ {
			if clustermap.SlotOf(s.ID, s.Kind, k, from) == b.Slot.Slot {
				rec := make([]byte, size)
				le.PutUint64(rec[at:], uint64(k))
				records, n, b.Rows = append(records, rec...), n-1, b.Rows+1
			} else if k > key {
				k += rowraft.Key(1 + clustermap.Mix64(uint64(k))%4096)
			}
			if k-key > 1<<20 {
				break
			}
		}
		if b.Records = records; candidates {
			b.Records, b.Candidates, b.Rows = nil, records, 0
		}
		var all [][]byte
		last := -1
		err := Regroup(&b, &s, from, to, func(o *Block) error {
			records := o.Records
			if candidates {
				records = o.Candidates
			} else if o.Rows*size != len(records) {
				t.Errorf("%d rows in %d bytes", o.Rows, len(records))
			}
			if int(o.Slot.Slot) <= last || o.Counter != 9 || o.Table != s.ID || len(records) == 0 {
				t.Errorf("block %+v after slot %d", o, last)
			}
			last = int(o.Slot.Slot)
			for ; len(records) > 0; records = records[size:] {
				k := rowraft.Key(le.Uint64(records[at:]))
				if got := clustermap.SlotOf(s.ID, s.Kind, k, to); got != o.Slot.Slot {
					t.Errorf("key %d of slot %d came in slot %d", k, got, o.Slot.Slot)
				}
				all = append(all, slices.Clone(records[:size]))
			}
			return Regroup(o, &s, to, from, func(back *Block) error {
				if to >= from && back.Slot.Slot != b.Slot.Slot {
					t.Errorf("slot %d came back as slot %d", b.Slot.Slot, back.Slot.Slot)
				}
				return nil
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		want := slices.Collect(slices.Chunk(records, size))
		slices.SortFunc(all, bytes.Compare)
		slices.SortFunc(want, bytes.Compare)
		if !slices.EqualFunc(all, want, bytes.Equal) {
			t.Errorf("%d records became %d others", len(want), len(all))
		}
	})
}

// TestRegroupRefusesKeysOfAnotherSlot: such a key means that the block or the table is not the right one.
func TestRegroupRefusesKeysOfAnotherSlot(t *testing.T) {
	s := rowraft.Schema{ID: 77, Name: "t", Kind: rowraft.Sparse, Dim: 1}
	rec := make([]byte, 28)
	b := Block{Slot: Slot{Table: s.ID, Slot: (clustermap.SlotOf(s.ID, s.Kind, 0, 4096) + 1) % 4096, RecordBytes: 28},
		Rows: 1, Records: rec}
	err := Regroup(&b, &s, 4096, 8192, func(*Block) error { return nil })
	testutil.WantCodeOf(t, "a key of another slot", err, rowraft.CodeCorrupt)
}
