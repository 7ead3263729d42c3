package logstore

import (
	"sync"

	"github.com/hashicorp/raft"
)

// entryCache holds the newest log entries of all groups of a node, up to a number of bytes. It replaces raft.LogCache,
// which counts entries per group: 512 entries of 512 KiB are 256 MiB for each group. Replication and apply read entries
// soon after they were stored. So the cache drops the oldest entry first and never moves an entry to the front.
type entryCache struct {
	limitBytes int64

	mu    sync.Mutex // guards all fields below, and the maps of the groups
	bytes int64
	stamp uint64      // stamp of the newest entry
	fifo  []cacheItem // ring of the entries put, oldest at head
	head  int
	n     int
}

// cacheItem is a slot of the ring. It does not hold the entry: behind the live entry of an idle group there may be any
// number of slots whose entries are dropped.
type cacheItem struct {
	group *groupCache
	index uint64
	stamp uint64 // differs from the stamp of a later entry with the same index
}

// cached is an entry in the cache.
type cached struct {
	log   raft.Log
	stamp uint64
}

// groupCache is the part of one group.
type groupCache struct {
	all  *entryCache
	logs map[uint64]*cached // guarded by all.mu
}

// cacheOverheadBytes is the cost of an entry in addition to its data: raft.Log, map and ring.
const cacheOverheadBytes = 256

func newEntryCache(limitBytes int64) *entryCache { return &entryCache{limitBytes: limitBytes} }

func (c *entryCache) group() *groupCache {
	return &groupCache{all: c, logs: map[uint64]*cached{}}
}

func entryBytes(l *raft.Log) int64 { return int64(len(l.Data)+len(l.Extensions)) + cacheOverheadBytes }

// put adds logs to the cache. Their data must not change afterwards.
func (g *groupCache) put(logs []*raft.Log) {
	c := g.all
	if c.limitBytes == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range logs {
		if old := g.logs[l.Index]; old != nil {
			c.bytes -= entryBytes(&old.log)
		}
		c.stamp++
		g.logs[l.Index] = &cached{*l, c.stamp} // a copy: raft continues to write to the log of a future
		c.bytes += entryBytes(l)
		c.pushLocked(cacheItem{g, l.Index, c.stamp})
	}
	// The second condition bounds the ring slots of entries that were removed.
	for c.n > 0 && (c.bytes > c.limitBytes || int64(c.n) > c.limitBytes/cacheOverheadBytes) {
		c.dropLocked(c.popLocked())
	}
}

func (g *groupCache) get(index uint64, out *raft.Log) bool {
	g.all.mu.Lock()
	defer g.all.mu.Unlock()
	l := g.logs[index]
	if l == nil {
		return false
	}
	*out = l.log
	return true
}

// remove deletes the entries from min to max.
func (g *groupCache) remove(min, max uint64) {
	c := g.all
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, l := range g.logs {
		if min <= i && i <= max {
			c.bytes -= entryBytes(&l.log)
			delete(g.logs, i)
		}
	}
	// Slots at the head without an entry can leave the ring now. The others are skipped when they reach the head.
	for c.n > 0 {
		if c.fifo[c.head].entry() != nil {
			break
		}
		c.popLocked()
	}
}

// entry returns the entry of a slot, nil if it was dropped.
func (it cacheItem) entry() *cached {
	if e := it.group.logs[it.index]; e != nil && e.stamp == it.stamp {
		return e
	}
	return nil
}

func (c *entryCache) dropLocked(it cacheItem) {
	if e := it.entry(); e != nil {
		c.bytes -= entryBytes(&e.log)
		delete(it.group.logs, it.index)
	}
}

func (c *entryCache) pushLocked(it cacheItem) {
	if c.n == len(c.fifo) {
		grown := make([]cacheItem, max(64, 2*len(c.fifo)))
		for i := range c.n {
			grown[i] = c.fifo[(c.head+i)%len(c.fifo)]
		}
		c.fifo, c.head = grown, 0
	}
	c.fifo[(c.head+c.n)%len(c.fifo)] = it
	c.n++
}

func (c *entryCache) popLocked() cacheItem {
	it := c.fifo[c.head]
	c.fifo[c.head] = cacheItem{}
	c.head = (c.head + 1) % len(c.fifo)
	c.n--
	return it
}

func (c *entryCache) usedBytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}
