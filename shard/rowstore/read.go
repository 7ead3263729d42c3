package rowstore

import (
	"runtime"
	"sync/atomic"

	"github.com/rowraft/rowraft"
)

// Flags in the version of a record. Counters of slots never come near them.
const (
	busy = uint64(1) << 63 // the record is being changed
	gone = ^uint64(0)      // the record was taken out of the index
)

// loadVersion is for readers beside the writer.
func (r record) loadVersion() uint64 { return atomic.LoadUint64(r.version()) }

// setVersion ends a change: what was stored before is seen by whoever loads v.
func (r record) setVersion(v uint64) { storeVersion(r.version(), v) }

// setBusy begins a change: whoever loads what is stored behind it finds the
// record busy, or of a later version.
func (r record) setBusy() {
	storeVersion(r.version(), *r.version()|busy)
	storeFence()
}

// read writes the weights of key to dst, as a whole, and reports whether key has
// a row. It never holds the writer up; while the row is being changed it waits.
// REQUIRES: the caller is within t.grace.
func (t *Table) read(c *chunk, i int, key rowraft.Key, dst []byte, dt rowraft.DType) bool {
	r, ok := t.record(c, i, key)
	for tries := 1; ok; tries++ {
		v := r.loadVersion()
		if v == gone {
			// Its entry was taken out behind our look, and may have come back.
			r, ok = t.find(c.slot[i], c.tag[i], key)
			continue
		}
		if v&busy == 0 {
			convert(dst, dt, t.weights(r), t.storage)
			loadFence()
			if r.loadVersion() == v {
				return true
			}
		}
		if tries%64 == 0 {
			runtime.Gosched() // the writer may wait for this processor
		}
	}
	return false
}
