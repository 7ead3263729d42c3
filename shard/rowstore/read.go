package rowstore

import (
	"runtime"
	"sync/atomic"
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard/rowstore/order"
	"github.com/rowraft/rowraft/wire"
)

// Flags in the version of a record. A slot's counter never reaches them.
const (
	busy = uint64(1) << 63 // the record is being changed
	gone = ^uint64(0)      // the record is no longer in the index
)

// loadVersion is for readers that run concurrently with the writer.
func (r record) loadVersion() uint64 { return atomic.LoadUint64(r.version()) }

// setVersion ends a change: a reader that loads v sees all stores before it.
func (r record) setVersion(v uint64) { order.Store(r.version(), v) }

// setBusy begins a change: a reader that loads a later store finds the
// record busy, or with a later version.
func (r record) setBusy() {
	order.Store(r.version(), *r.version()|busy)
	order.StoreFence()
}

// read writes the weights of key to dst, all from one version, and returns the version; 0 if key has no row. If the
// row has version known, read does not write them. It never blocks the writer. It waits while the writer changes the
// row.
// REQUIRES: the caller has entered t.index.grace.
func (x *index) read(c *lookups, i int, key rowraft.Key, dst []byte, dt rowraft.DType, known uint64) uint64 {
	if c.addr[i] == unsafe.Pointer(&noRow) { // prefetchRecords found no entry with the tag
		return 0
	}
	r, ok := x.record(c, i, key)
	for ok {
		if v := x.copied(r, dst, dt, known); v != 0 {
			return v
		}
		// The writer removed the row after the lookup. It may have created a new one since.
		r, ok = x.find(c.slot[i], c.tag[i], key)
	}
	return 0
}

// copiedAtOnce is read without its loops, for the type of the stored weights. It reports false if the lookup did not
// find the row, or if the writer changes or removes the row now.
func (x *index) copiedAtOnce(c *lookups, i int, key rowraft.Key, dst []byte) bool {
	r := record{c.addr[i]}
	v := r.loadVersion()
	if r.key() != uint64(key) || v&busy != 0 {
		return false
	}
	copy(dst, unsafe.Slice((*byte)(unsafe.Add(r.p, weightsAt)), len(dst)))
	order.LoadFence()
	return r.loadVersion() == v
}

// copied writes the weights of r to dst, all from one version, and returns the version; 0 if r is no longer in the
// index. If the row has version known, copied does not write them. It waits while the writer changes the row.
func (x *index) copied(r record, dst []byte, dt rowraft.DType, known uint64) uint64 {
	for tries := 1; ; tries++ {
		v := r.loadVersion()
		if v == gone {
			return 0
		}
		if v == known { // not busy: no version is
			return v
		}
		if v&busy == 0 {
			wire.Convert(dst, dt, x.weights(r), x.storage)
			order.LoadFence()
			if r.loadVersion() == v {
				return v
			}
		}
		if tries%64 == 0 {
			runtime.Gosched() // the writer may need this processor
		}
	}
}
