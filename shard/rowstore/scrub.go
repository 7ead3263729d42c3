package rowstore

import (
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/canary"
	"github.com/rowraft/rowraft/internal/slab"
)

// CheckSlot hashes the rows and candidates of slot s anew and reports whether they are those whose
// digest and number the table has kept, change by change. If they are not, memory was
// damaged. size is how many bytes it has read.
//
// It is one of the readers of what the writer left between two calls.
func (t *Table) CheckSlot(s rowraft.Slot) (size int, ok bool) {
	var sum Digest
	var tags [chunkKeys]uint32
	var addr [chunkKeys]unsafe.Pointer
	rows, n := 0, 0
	hash := func() bool { // of the records at addr, which are on their way
		for i := range n {
			r := record{addr[i]}
			size += t.RecordBytes()
			if slot, tag := t.locate(rowraft.Key(r.key())); slot != s || tag != tags[i] {
				return false
			}
			sum = sum.Add(t.rowHash(r))
		}
		rows, n = rows+n, 0
		return true
	}
	for e := range t.slots[s].entries() {
		p := slab.Place(uint32(e) - 1)
		if !t.rows.Has(p) {
			return size, false
		}
		addr[n], tags[n] = t.rows.At(p), uint32(e>>32)
		if n++; n == chunkKeys {
			prefetch(&addr[0], n, keyOffset, min(t.RecordBytes(), maxPrefetch))
			if !hash() {
				return size, false
			}
		}
	}
	if n > 0 {
		prefetch(&addr[0], n, keyOffset, min(t.RecordBytes(), maxPrefetch))
		if !hash() {
			return size, false
		}
	}
	waiting := 0
	t.eachCandidate(s, func(_ uint32, c candidate) {
		sum = sum.Add(c.digest())
		size += CandidateBytes
		waiting++
	})
	return size, rows == int(t.slots[s].rows) && waiting == t.SlotCandidates(s) && sum == t.slots[s].digest
}

// Rot is the sabotage canary.MemoryRots: a bit of the first row of a slot that has one
// turns. It reports whether there was a row.
func (t *Table) Rot() bool {
	if !canary.Is(canary.MemoryRots) {
		return false
	}
	for s := range t.slots {
		for e := range t.slots[s].entries() {
			t.weights(t.at(slab.Place(uint32(e) - 1)))[0] ^= 1
			return true
		}
	}
	return false
}
