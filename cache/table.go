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

	versions worth
}

// Get is [Cache.Get] at now, and returns more of what it finds; versions is nil or has a place for each key. The first
// call makes the cache: of so many bytes, for rows of dim weights. byAge is the unit of now and atLeast.
//
// Get sets the versions of Found.Old, and fills their part of dst with the older copies: if the server has the same
// version, that is the row.
//
// Errors: those of New; CodeInvalidArgument for another unit than that of the first call.
func (t *Table) Get(keys []rowraft.Key, now, atLeast uint64, dst []float32, versions []uint32, dim int, bytes int64,
	byAge bool) (found Found, err error) {
	if err := t.open(dim, bytes, byAge); err != nil {
		return Found{}, err
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.rows == nil { // freed meanwhile
		for i := range keys {
			found.Missed = append(found.Missed, int32(i))
		}
		return found, nil
	}
	found = t.rows.get(keys, now, atLeast, dst, versions)
	found.Epoch = t.epoch
	return found, nil
}

// open makes the cache, if there is none.
func (t *Table) open(dim int, bytes int64, byAge bool) (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows == nil {
		if t.rows, err = New(bytes, dim); err != nil {
			return err
		}
		t.byAge = byAge
	}
	if t.byAge != byAge {
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"one pull states the bound of copies by MaxAge, another by Now and Since: use one of them for all pulls of a table")
	}
	return nil
}

// Put is [Cache.Put] of the rows of that epoch of those keys that which has the indices of; versions has the version of
// each row, or wire.NoVersion. A copy of the same version becomes newer. If the copies are of another epoch, it keeps
// nothing.
func (t *Table) Put(keys []rowraft.Key, which []int32, asOf uint64, rows []float32, versions []uint32,
	epoch rowraft.TableEpoch) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.epoch == epoch && t.rows != nil {
		t.rows.putSome(keys, which, asOf, rows, versions)
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
		s := t.rows.Stats()
		s.Unchanged = t.versions.total.Load()
		sum.add(s)
	}
}
