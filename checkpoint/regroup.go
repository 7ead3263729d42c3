package checkpoint

import (
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// Regroup calls do with the rows or the candidates of b, a block of a checkpoint of from slots, as blocks of a cluster
// of to slots. s is the schema of the table, whose id may be that of a later restore. Slots nest
// (docs/formats/hash.md): with fewer slots, b lies in one of them; with more, b is divided, and slots without a row and
// without a candidate are left out. Each block has the counter of b, which is at least the version of each of its rows.
// The blocks are valid during the call of do.
func Regroup(b *Block, s *rowraft.Schema, from, to rowraft.SlotCount, do func(*Block) error) error {
	out := *b
	if to <= from {
		out.Slot.Slot /= rowraft.Slot(from / to)
		return do(&out)
	}
	n := rowraft.Slot(to / from)
	first, groups, seed := b.Slot.Slot*n, make([][]byte, n), clustermap.TableSeed(s.ID)
	records, size, at := b.Records, b.RecordBytes, recordKey
	if b.Candidates != nil {
		records, size, at = b.Candidates, candidateSize, 0
	}
	for ; len(records) > 0; records = records[size:] {
		key := s.Kind.PlacementKey(rowraft.Key(le.Uint64(records[at:])))
		slot := clustermap.SlotOfHash(clustermap.Mix64(uint64(key)^seed), to)
		if slot < first || slot-first >= n {
			return rowraft.Errorf(rowraft.CodeCorrupt, "table %s: key %d of slot %d of %d is in slot %d of %d: want %d to %d",
				s.Name, key, b.Slot.Slot, from, slot, to, first, first+n-1)
		}
		groups[slot-first] = append(groups[slot-first], records[:size]...)
	}
	for i, g := range groups {
		if len(g) == 0 {
			continue
		}
		out.Slot.Slot = first + rowraft.Slot(i)
		if b.Candidates != nil {
			out.Candidates = g
		} else {
			out.Rows, out.Records = len(g)/size, g
		}
		if err := do(&out); err != nil {
			return err
		}
	}
	return nil
}
