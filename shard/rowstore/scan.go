package rowstore

import (
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/slab"
)

// AppendKeys appends the keys of slot's rows to dst, in no particular order. It is
// one of the readers that see what the writer left between two calls.
func (t *Table) AppendKeys(dst []rowraft.Key, slot rowraft.Slot) []rowraft.Key {
	var addr [chunkKeys]unsafe.Pointer
	n := 0
	gather := func() {
		if n == 0 {
			return
		}
		prefetch(&addr[0], n, keyOffset, keyOffset+8)
		for _, p := range addr[:n] {
			dst = append(dst, rowraft.Key(record{p}.key()))
		}
		n = 0
	}
	for e := range t.slots[slot].entries() {
		addr[n] = t.rows.At(slab.Place(uint32(e) - 1))
		if n++; n == chunkKeys {
			gather()
		}
	}
	gather()
	return dst
}
