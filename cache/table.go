package cache

import (
	"sync"

	"github.com/rowraft/rowraft"
)

// Table holds copies of the rows of a table, all of one table epoch. The zero Table holds none. Safe for concurrent
// use.
type Table struct {
	mu    sync.RWMutex
	rows  *Cache             // nil before the first Get
	epoch rowraft.TableEpoch // the copies have the rows of this epoch; 0: there are no copies
	byAge bool               // the unit of the first Get
}

// Get is [Cache.Get] at now; it also returns the epoch of the copies. The first call makes the cache: of so many bytes,
// for rows of dim weights. byAge is the unit of now and atLeast.
//
// Errors: those of New; CodeInvalidArgument for another unit than that of the first call.
func (t *Table) Get(keys []rowraft.Key, now, atLeast uint64, dst []float32, dim int, bytes int64,
	byAge bool) (missed []int32, epoch rowraft.TableEpoch, err error) {
	rows, epoch, err := t.open(dim, bytes, byAge)
	if err != nil {
		return nil, 0, err
	}
	missed, _ = rows.get(keys, now, atLeast, dst)
	return missed, epoch, nil
}

// open returns the cache and its epoch. The first call makes it.
func (t *Table) open(dim int, bytes int64, byAge bool) (c *Cache, epoch rowraft.TableEpoch, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows == nil {
		if t.rows, err = New(bytes, dim); err != nil {
			return nil, 0, err
		}
		t.byAge = byAge
	}
	if t.byAge != byAge {
		return nil, 0, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"one pull states the bound of copies by MaxAge, another by Now and Since: use one of them for all pulls of a table")
	}
	return t.rows, t.epoch, nil
}

// Put is [Cache.Put] of rows of that epoch. If the copies are of another one, it keeps nothing.
func (t *Table) Put(keys []rowraft.Key, asOf uint64, rows []float32, epoch rowraft.TableEpoch) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.epoch == epoch && t.rows != nil {
		t.rows.Put(keys, asOf, rows)
	}
}

// Begin makes epoch the one of the copies, and drops those of an older one.
func (t *Table) Begin(epoch rowraft.TableEpoch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.epoch >= epoch {
		return
	}
	if t.epoch > 0 && t.rows != nil {
		t.rows.Clear()
	}
	t.epoch = epoch
}

// Free drops all copies with their memory.
func (t *Table) Free() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows, t.epoch = nil, 0
}

// AddTo adds the counts to sum.
func (t *Table) AddTo(sum *Stats) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.rows != nil {
		sum.add(t.rows.Stats())
	}
}
