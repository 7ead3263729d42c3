package cache

import (
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// Places decides which rows a memory elsewhere keeps, such as that of a GPU, and where: it is a [Cache] whose weights
// are in that memory. Its caller asks Old which rows to fetch, then Assign where they go, and writes them there. Rows
// are evicted as in a Cache. One goroutine uses it at a time.
//
// Place 0 is never assigned, so that callers can keep zeros there. A set of the cache may have too few lines for a
// batch: the other rows get one of the places behind the lines, for that batch only.
type Places struct {
	c     *Cache
	batch uint32   // number of the last Assign
	used  []uint32 // by line: the last batch that has it
}

// NewPlaces returns the places of at least so many rows. REQUIRES: rows is 1 or more.
func NewPlaces(rows int) *Places {
	n := (rows + ways - 1) / ways
	return &Places{c: &Cache{sets: uint64(n), lines: make([]line, n*ways)}, used: make([]uint32, n*ways)}
}

// Rows returns how many rows the memory must have for batches of up to batch keys: all places are smaller.
func (p *Places) Rows(batch int) int { return 1 + len(p.c.lines) + batch }

// Old returns the indices, ascending, of the keys without a row that is as of atLeast or newer. now counts how old the
// others are, as in [Table.Get].
func (p *Places) Old(keys []rowraft.Key, now, atLeast uint64) []int32 {
	return p.c.get(keys, now, atLeast, nil, nil).Missed
}

// Assign sets places to the places of keys, and records that the rows of those at the indices old are as of asOf, 1 or
// more. keys are different, and old is what Old returned for them, since when no other method was called.
func (p *Places) Assign(keys []rowraft.Key, old []int32, asOf uint64, places []int32) {
	c := p.c
	p.batch++
	next := old
	for i, key := range keys { // first those that have a line, so that no other row takes it
		if len(next) > 0 && next[0] == int32(i) {
			next = next[1:]
			places[i] = 0
		}
		first, _ := c.set(key)
		if at := c.find(first, key); at >= 0 {
			p.used[at] = p.batch
			places[i] = int32(at) + 1
		}
	}
	behind := int32(len(c.lines)) + 1
	evicted := uint64(0)
	for _, i := range old {
		at := int(places[i]) - 1
		if at < 0 {
			first, _ := c.set(keys[i])
			if at = p.victim(first); at < 0 {
				places[i] = behind
				behind++
				continue
			}
			if c.lines[at].asOf != 0 {
				evicted++
			}
			p.used[at] = p.batch
			places[i] = int32(at) + 1
		}
		c.lines[at] = line{key: keys[i], asOf: asOf, version: wire.NoVersion}
	}
	c.evicted.Add(evicted)
}

// victim returns the line of a set that a new row takes, or -1 if the batch has all of them.
func (p *Places) victim(first int) int {
	if at := p.c.victim(first); p.used[at] != p.batch || p.c.lines[at].asOf == 0 {
		return at
	}
	oldest := -1
	for at := first; at < first+ways; at++ {
		if p.used[at] != p.batch && (oldest < 0 || p.c.lines[at].asOf < p.c.lines[oldest].asOf) {
			oldest = at
		}
	}
	return oldest
}

// Forget drops the row of a key.
func (p *Places) Forget(key rowraft.Key) {
	first, _ := p.c.set(key)
	if at := p.c.find(first, key); at >= 0 {
		p.c.lines[at] = line{}
	}
}

// Stats returns the counts.
func (p *Places) Stats() Stats { return p.c.Stats() }
