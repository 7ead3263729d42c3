package rowstore

import (
	"runtime"
	"sync/atomic"

	"github.com/rowraft/rowraft"
)

// Flags in the version of a record. A slot's counter never reaches them.
const (
	busy = uint64(1) << 63 // the record is being changed
	gone = ^uint64(0)      // the record is no longer in the index
)

// loadVersion is for readers that run concurrently with the writer.
func (r record) loadVersion() uint64 { return atomic.LoadUint64(r.version()) }

// setVersion ends a change: a reader that loads v sees all stores before it.
func (r record) setVersion(v uint64) { storeVersion(r.version(), v) }

// setBusy begins a change: a reader that loads a later store finds the
// record busy, or with a later version.
func (r record) setBusy() {
	storeVersion(r.version(), *r.version()|busy)
	storeFence()
}

// read writes the weights of key to dst, all from one version, and reports whether key has
// a row. It never blocks the writer. It waits while the writer changes the row.
// REQUIRES: the caller has entered t.index.grace.
func (x *index) read(c *chunk, i int, key rowraft.Key, dst []byte, dt rowraft.DType) bool {
	r, ok := x.record(c, i, key)
	for ok {
		if x.copied(r, dst, dt) {
			return true
		}
		// The writer removed the row after the lookup. It may have created a new one since.
		r, ok = x.find(c.slot[i], c.tag[i], key)
	}
	return false
}

// copied writes the weights of r to dst, all from one version. It returns false if r is no longer in the index. It
// waits while the writer changes the row.
func (x *index) copied(r record, dst []byte, dt rowraft.DType) bool {
	for tries := 1; ; tries++ {
		v := r.loadVersion()
		if v == gone {
			return false
		}
		if v&busy == 0 {
			convert(dst, dt, x.weights(r), x.storage)
			loadFence()
			if r.loadVersion() == v {
				return true
			}
		}
		if tries%64 == 0 {
			runtime.Gosched() // the writer may need this processor
		}
	}
}
