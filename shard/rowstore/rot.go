//go:build rowraft_canary

package rowstore

import "github.com/rowraft/rowraft/internal/slab"

// Rot implements the sabotage canary.MemoryRots: it flips a bit in the first row of the first slot
// that has one. It reports whether the table has a row.
func (t *Table) Rot() bool {
	for s := range t.index.slots {
		for e := range t.index.slots[s].entries() {
			if isCold(e) {
				continue
			}
			t.index.weights(t.index.at(slab.Place(uint32(e) - 1)))[0] ^= 1
			return true
		}
	}
	return false
}
