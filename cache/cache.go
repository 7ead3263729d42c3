package cache

import (
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/wire"
)

const (
	ways    = 8   // lines of a set
	stripes = 256 // locks
)

// line is the head of a copy.
type line struct {
	key  rowraft.Key
	asOf uint64 // 0: the line is free

	version uint32 // of the row; wire.NoVersion: not known
	read    bool   // since the copy came
}

// Cache is a bounded set of copies of the rows of one table. Safe for concurrent use.
type Cache struct {
	dim    int
	sets   uint64 // at least 1
	lines  []line
	values []float32 // dim of each line

	locks [stripes]lock

	hits, stale, misses, age, evicted atomic.Uint64
}

// lock is a mutex on a cache line of its own.
type lock struct {
	sync.Mutex
	_ [64 - unsafe.Sizeof(sync.Mutex{})]byte
}

// Stats counts the keys that Get was asked for since the cache was made, and what Put evicted.
type Stats struct {
	Hits   uint64
	Stale  uint64 // there was a copy, but it was too old
	Misses uint64 // there was no copy

	Unchanged uint64 // those of Stale that the server did not send, because they had not changed; see Table
	Age       uint64 // sum over the hits of Table.Get of how old the copy was, in the caller's unit
	Evicted   uint64 // copies that made room for the copy of another key
}

// add adds the counts of o.
func (s *Stats) add(o Stats) {
	s.Hits, s.Stale, s.Misses = s.Hits+o.Hits, s.Stale+o.Stale, s.Misses+o.Misses
	s.Unchanged, s.Age, s.Evicted = s.Unchanged+o.Unchanged, s.Age+o.Age, s.Evicted+o.Evicted
}

// New returns an empty cache for rows of dim weights.
//
// Errors: CodeInvalidArgument for fewer bytes than MinBytes, or more than MaxBytes.
func New(bytes int64, dim int) (*Cache, error) {
	if err := CheckBytes(bytes); err != nil {
		return nil, err
	}
	n := max((bytes-int64(unsafe.Sizeof(Cache{})))/(ways*copyBytes(dim)), 1)
	return &Cache{dim: dim, sets: uint64(n), lines: make([]line, n*ways), values: make([]float32, n*ways*int64(dim))}, nil
}

// copyBytes returns the bytes of a copy of a row of dim weights.
func copyBytes(dim int) int64 {
	return int64(unsafe.Sizeof(line{})) + int64(dim)*int64(unsafe.Sizeof(float32(0)))
}

// BytesFor returns the size of a cache for so many rows of dim weights, at least MinBytes and at most MaxBytes.
func BytesFor(rows, dim int) int64 {
	if rows > MaxBytes/int(copyBytes(dim)) {
		return MaxBytes
	}
	sets := (int64(rows) + ways - 1) / ways
	return min(max(int64(unsafe.Sizeof(Cache{}))+sets*ways*copyBytes(dim), MinBytes), MaxBytes)
}

// CheckBytes returns an error for a size that New refuses.
func CheckBytes(bytes int64) error {
	if bytes < MinBytes || bytes > MaxBytes {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "a cache of %d bytes: want %d to %d", bytes, int64(MinBytes),
			int64(MaxBytes))
	}
	return nil
}

// MinBytes is the size of the smallest cache, which has some rows of the largest dim. MaxBytes is more than a machine
// has.
const (
	MinBytes = 1 << 20
	MaxBytes = 1 << 44
)

// Get fills dst, dim weights for each of keys, with the copies that are as of atLeast or newer. It returns the
// indices of the other keys, whose part of dst it leaves as it is.
func (c *Cache) Get(keys []rowraft.Key, atLeast uint64, dst []float32) (missed []int32) {
	return c.get(keys, 0, atLeast, dst, nil).Missed
}

// GetAged is Get, and returns how new the oldest of the copies is that it filled in; the highest number without any.
func (c *Cache) GetAged(keys []rowraft.Key, atLeast uint64, dst []float32) (missed []int32, oldest uint64) {
	found := c.get(keys, 0, atLeast, dst, nil)
	return found.Missed, found.oldest
}

// Found is what a cache has for some keys.
type Found struct {
	// Old and Missed are the indices of the keys without a copy that is new enough: Old of those with an older copy whose
	// version is known, if the caller asks for versions; Missed of all others.
	Old, Missed []int32

	Epoch rowraft.TableEpoch // of the copies; see Table

	oldest uint64 // how new the oldest copy is that is new enough
}

// get is Table.Get.
func (c *Cache) get(keys []rowraft.Key, now, atLeast uint64, dst []float32, versions []uint32) (f Found) {
	stale, age := 0, uint64(0)
	f.oldest = math.MaxUint64
	for i, key := range keys {
		first, lock := c.set(key)
		lock.Lock()
		at := c.find(first, key)
		if at < 0 {
			lock.Unlock()
			f.Missed = append(f.Missed, int32(i))
			continue
		}
		l := &c.lines[at]
		fresh, known := l.asOf >= atLeast, versions != nil && l.version != wire.NoVersion
		if fresh {
			l.read = true
			age += now - min(l.asOf, now)
			f.oldest = min(f.oldest, l.asOf)
		} else if known {
			versions[i] = l.version
		}
		if fresh || known {
			copy(dst[i*c.dim:(i+1)*c.dim], c.row(at))
		}
		lock.Unlock()
		switch {
		case fresh:
			continue
		case known:
			f.Old = append(f.Old, int32(i))
		default:
			f.Missed = append(f.Missed, int32(i))
		}
		stale++
	}
	others := len(f.Old) + len(f.Missed)
	c.hits.Add(uint64(len(keys) - others))
	c.stale.Add(uint64(stale))
	c.misses.Add(uint64(others - stale))
	c.age.Add(age)
	return f
}

// Put keeps copies of the rows of keys, dim weights each, as of asOf, 1 or more. A newer copy stays.
func (c *Cache) Put(keys []rowraft.Key, asOf uint64, rows []float32) {
	evicted := uint64(0)
	for i, key := range keys {
		evicted += c.put(key, asOf, rows[i*c.dim:(i+1)*c.dim], wire.NoVersion)
	}
	c.evicted.Add(evicted)
}

// putSome is Table.Put of the epoch of the copies.
func (c *Cache) putSome(keys []rowraft.Key, which []int32, asOf uint64, rows []float32, versions []uint32) {
	evicted := uint64(0)
	for _, i := range which {
		at := int(i) * c.dim
		evicted += c.put(keys[i], asOf, rows[at:at+c.dim], versions[i])
	}
	c.evicted.Add(evicted)
}

// put keeps one copy. It returns the number of other copies that made room for it, 0 or 1.
func (c *Cache) put(key rowraft.Key, asOf uint64, row []float32, version uint32) (evicted uint64) {
	first, lock := c.set(key)
	lock.Lock()
	defer lock.Unlock()
	at := c.find(first, key)
	if at < 0 {
		if at = c.victim(first); c.lines[at].asOf != 0 {
			evicted = 1
		}
	}
	l := &c.lines[at]
	switch {
	case l.key == key && l.asOf > asOf: // a newer copy
	case l.key == key && l.asOf > 0 && l.version == version && version != wire.NoVersion:
		l.asOf = asOf
	default:
		*l = line{key: key, asOf: asOf, version: version}
		copy(c.row(at), row)
	}
	return evicted
}

// Clear drops all copies.
func (c *Cache) Clear() {
	for first := 0; first < len(c.lines); first += ways {
		lock := &c.locks[first/ways%stripes]
		lock.Lock()
		clear(c.lines[first : first+ways])
		lock.Unlock()
	}
}

// set returns the first line of the set of key, and its lock.
func (c *Cache) set(key rowraft.Key) (first int, of *lock) {
	n, _ := bits.Mul64(clustermap.Mix64(uint64(key)), c.sets)
	return int(n) * ways, &c.locks[n%stripes]
}

// find returns the line of key in the set that begins at first, or -1.
// REQUIRES: the lock of the set is held; so for victim and row.
func (c *Cache) find(first int, key rowraft.Key) int {
	for i, l := range c.lines[first : first+ways] {
		if l.key == key && l.asOf != 0 {
			return first + i
		}
	}
	return -1
}

// victim returns the line that a new copy takes: a free one, else the oldest that was not read, else the oldest. In
// that case it forgets which were read, so that a copy stays only while it is read again and again.
func (c *Cache) victim(first int) int {
	oldest, unread := first, -1
	for at := first; at < first+ways; at++ {
		l := &c.lines[at]
		if l.asOf == 0 {
			return at
		}
		if l.asOf < c.lines[oldest].asOf {
			oldest = at
		}
		if !l.read && (unread < 0 || l.asOf < c.lines[unread].asOf) {
			unread = at
		}
	}
	if unread >= 0 {
		return unread
	}
	for at := first; at < first+ways; at++ {
		c.lines[at].read = false
	}
	return oldest
}

func (c *Cache) row(at int) []float32 { return c.values[at*c.dim : (at+1)*c.dim] }

// Stats returns the counts.
func (c *Cache) Stats() Stats {
	return Stats{Hits: c.hits.Load(), Stale: c.stale.Load(), Misses: c.misses.Load(), Age: c.age.Load(),
		Evicted: c.evicted.Load()}
}

// Dim returns the number of weights of a row.
func (c *Cache) Dim() int { return c.dim }
