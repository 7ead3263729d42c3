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
	for tries := 1; ok; tries++ {
		v := r.loadVersion()
		if v == gone {
			// The writer removed the row after the lookup. It may have created a new one since.
			r, ok = x.find(c.slot[i], c.tag[i], key)
			continue
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
	return false
}
