package hot

import (
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cache"
	"github.com/rowraft/rowraft/internal/elapsed"
)

// Copies are rows of shards without a replica on this server, in a fixed number of bytes.
//
// A copy has everything that was acknowledged before a moment on this server's clock: the moment before the server
// asked a replica for the row, minus the age that the replica proved. So neither a slow reply nor a pause makes a copy
// look newer than it is, and a copy is served only within the bound of the read. All copies are of one table epoch:
// those of an older one are dropped at once when a reply, or the cluster map, has a newer one.
//
// Safe for concurrent use.
type Copies struct {
	bytes int64
	clock *elapsed.Clock
	rows  atomic.Pointer[Rows]

	mu     sync.Mutex // one change of rows at a time; guards the fields below
	marks  map[rowraft.ShardID][]mark
	exists func(rowraft.TableID) bool // by a map that is not older than that of the last Keep; nil: all do
	gone   cache.Stats                // counts of caches that are no longer in rows
}

// Rows are the copies of one table epoch. The set of tables is immutable; the copies of a table change.
type Rows struct {
	Epoch  rowraft.TableEpoch
	tables map[rowraft.TableID]*cache.Cache
}

// mark states that a shard had committed an entry at a moment, or before. Copies that are as of a later moment have it.
type mark struct {
	at    uint64
	index rowraft.Index
}

// maxMarks is the number of marks of a shard. Every other one is dropped when they are as many: a read then needs
// newer copies than it would have needed.
const maxMarks = 16

// NewCopies returns copies in so many bytes, which are allocated when rows come; 0: none are kept.
func NewCopies(bytes int64) *Copies {
	c := &Copies{bytes: bytes, clock: elapsed.NewClock(elapsed.BootTime), marks: make(map[rowraft.ShardID][]mark)}
	c.rows.Store(&Rows{})
	return c
}

// Now reads the clock that moments are on.
func (c *Copies) Now() uint64 { return c.clock.Now() }

// Rows returns the copies of the current epoch.
func (c *Copies) Rows() *Rows { return c.rows.Load() }

// Get is [cache.Cache.GetAged] for rows of a table; all keys are missed if there are no copies of the table.
func (r *Rows) Get(table rowraft.TableID, keys []rowraft.Key, atLeast uint64,
	dst []float32) (missed []int32, oldest uint64) {
	if rows := r.tables[table]; rows != nil {
		return rows.GetAged(keys, atLeast, dst)
	}
	missed = make([]int32, len(keys))
	for i := range missed {
		missed[i] = int32(i)
	}
	return missed, math.MaxUint64
}

// Tables returns the tables with copies.
func (r *Rows) Tables() (ids []uint64) {
	for id := range r.tables {
		ids = append(ids, uint64(id))
	}
	return ids
}

// Put keeps copies of rows of an epoch, with dim weights each. An older epoch than that of the copies keeps nothing.
func (c *Copies) Put(table rowraft.TableID, dim int, keys []rowraft.Key, asOf uint64, rows []float32,
	epoch rowraft.TableEpoch) {
	r := c.Rows()
	if r.Epoch == epoch && r.tables[table] == nil || r.Epoch < epoch {
		c.open(table, dim, epoch)
		r = c.Rows()
	}
	if into := r.tables[table]; into != nil && r.Epoch == epoch {
		into.Put(keys, asOf, rows)
	}
}

// open makes room for the copies of a table. Each table has an equal part of the memory: those of the others are
// dropped. If the parts would be too small, it does nothing.
func (c *Copies) open(table rowraft.TableID, dim int, epoch rowraft.TableEpoch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.beginLocked(epoch)
	old := c.Rows()
	n := int64(len(old.tables) + 1)
	if old.Epoch != epoch || old.tables[table] != nil || c.bytes/n < cache.MinBytes ||
		c.exists != nil && !c.exists(table) { // dropped while its rows were fetched
		return
	}
	next := &Rows{Epoch: epoch, tables: make(map[rowraft.TableID]*cache.Cache, n)}
	dims := map[rowraft.TableID]int{table: dim}
	for id, rows := range old.tables {
		dims[id] = rows.Dim()
	}
	for id, dim := range dims {
		rows, err := cache.New(c.bytes/n, dim)
		if err != nil {
			return
		}
		next.tables[id] = rows
	}
	c.replaceLocked(next)
}

// Begin drops the copies of older epochs.
func (c *Copies) Begin(epoch rowraft.TableEpoch) {
	if c.Rows().Epoch < epoch {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.beginLocked(epoch)
	}
}

func (c *Copies) beginLocked(epoch rowraft.TableEpoch) {
	if c.Rows().Epoch < epoch {
		c.replaceLocked(&Rows{Epoch: epoch})
		clear(c.marks)
	}
}

// replaceLocked never changes the caches in use: a reader of them gets rows of one epoch.
func (c *Copies) replaceLocked(next *Rows) {
	for id, rows := range c.Rows().tables {
		if next.tables[id] != rows {
			c.gone = sum(c.gone, rows.Stats())
		}
	}
	c.rows.Store(next)
}

// Keep drops the copies of the tables for which exists returns false.
func (c *Copies) Keep(exists func(rowraft.TableID) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keepLocked(exists)
}

func (c *Copies) keepLocked(exists func(rowraft.TableID) bool) {
	old := c.Rows()
	next := &Rows{Epoch: old.Epoch, tables: maps.Clone(old.tables)}
	maps.DeleteFunc(next.tables, func(id rowraft.TableID, _ *cache.Cache) bool { return !exists(id) })
	if len(next.tables) < len(old.tables) {
		c.replaceLocked(next)
	}
}

// Drop drops all copies.
func (c *Copies) Drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keepLocked(func(rowraft.TableID) bool { return false })
	clear(c.marks)
}

// Saw records that a shard has an applied entry now.
func (c *Copies) Saw(shard rowraft.ShardID, index rowraft.Index) {
	now := c.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	marks := c.marks[shard]
	if n := len(marks); index == 0 || n > 0 && marks[n-1].index >= index {
		return
	}
	if len(marks) == maxMarks {
		for i := range maxMarks / 2 {
			marks[i] = marks[2*i]
		}
		marks = marks[:maxMarks/2]
	}
	c.marks[shard] = append(marks, mark{now, index})
}

// Since returns how new a copy must be so that it has entry index, and has at most an age.
func (c *Copies) Since(shard rowraft.ShardID, index rowraft.Index, maxAge time.Duration) uint64 {
	since := c.Now() - uint64(maxAge)
	if index == 0 {
		return since
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.marks[shard] {
		if m.index >= index {
			return max(since, m.at)
		}
	}
	return math.MaxUint64
}

// IndexAt returns an entry that copies as of a moment have; 0: none is known.
func (c *Copies) IndexAt(shard rowraft.ShardID, asOf uint64) (index rowraft.Index) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.marks[shard] {
		if m.at <= asOf {
			index = m.index
		}
	}
	return index
}

// Stats returns what the copies have answered, and the number of tables with copies.
func (c *Copies) Stats() (s cache.Stats, tables int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s = c.gone
	for _, rows := range c.Rows().tables {
		s = sum(s, rows.Stats())
	}
	return s, len(c.Rows().tables)
}

func sum(a, b cache.Stats) cache.Stats {
	return cache.Stats{Hits: a.Hits + b.Hits, Stale: a.Stale + b.Stale, Misses: a.Misses + b.Misses}
}
