package hot

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cache"
)

// has reports whether there is a copy of a key that is as of since or newer.
func (c *Copies) has(table rowraft.TableID, key rowraft.Key, since uint64) bool {
	missed, _ := c.Rows().Get(table, []rowraft.Key{key}, since, make([]float32, 1))
	return len(missed) == 0
}

// TestCopiesAreOfOneEpoch: a newer epoch drops all copies, rows of an older one are not kept, and a reader that has
// begun goes on with rows of its own epoch.
func TestCopiesAreOfOneEpoch(t *testing.T) {
	c, keys := NewCopies(8*cache.MinBytes), []rowraft.Key{5}
	now := c.Now()
	c.Put(1, 1, keys, now, []float32{1}, 3)
	if !c.has(1, 5, now) || c.has(1, 6, 0) || c.has(2, 5, 0) {
		t.Fatal("there is no copy, or one of another key or table")
	}
	before := c.Rows()
	c.Put(1, 1, keys, now, []float32{2}, 4)
	var got [1]float32
	if missed, _ := before.Get(1, keys, now, got[:]); len(missed) > 0 || got[0] != 1 {
		t.Errorf("a reader of epoch 3 gets %v (missed %v), want the row of epoch 3", got, missed)
	}
	if missed, _ := c.Rows().Get(1, keys, now, got[:]); len(missed) > 0 || got[0] != 2 {
		t.Errorf("a reader of epoch 4 gets %v (missed %v)", got, missed)
	}
	c.Put(1, 1, []rowraft.Key{7}, now, []float32{1}, 3)
	c.Saw(0, 9)
	if c.has(1, 7, 0) {
		t.Error("a row of epoch 3 is kept in epoch 4")
	}
	c.Begin(4)
	if !c.has(1, 5, now) || c.IndexAt(0, math.MaxUint64) != 9 {
		t.Error("the same epoch again drops the copies")
	}
	c.Begin(5)
	if c.has(1, 5, 0) || c.IndexAt(0, math.MaxUint64) != 0 {
		t.Error("copies outlive their epoch")
	}
	if s, tables := c.Stats(); tables != 0 || s.Hits < 3 {
		t.Errorf("%+v of %d tables, want the counts of dropped copies too", s, tables)
	}
}

// TestCopiesShareTheirMemory: each table has an equal part, a table that does not fit has no copies, and one that is
// gone makes room.
func TestCopiesShareTheirMemory(t *testing.T) {
	c := NewCopies(2 * cache.MinBytes)
	has := func(table rowraft.TableID) bool {
		missed, _ := c.Rows().Get(table, []rowraft.Key{1}, 0, make([]float32, 4))
		return len(missed) == 0
	}
	put := func(table rowraft.TableID) bool {
		c.Put(table, 4, []rowraft.Key{1}, c.Now(), make([]float32, 4), 1)
		return has(table)
	}
	if !put(1) || !put(2) || put(3) {
		t.Error("want copies of the first two tables")
	}
	c.exists = func(id rowraft.TableID) bool { return id != 1 }
	c.Keep(c.exists)
	if put(1) || !has(2) {
		t.Error("rows of a table that has gone, which were on the way, take the room of the others")
	}
	if !put(3) {
		t.Error("no room after a table has gone")
	}
	none := NewCopies(0)
	if none.Put(1, 1, []rowraft.Key{1}, 1, []float32{1}, 1); none.has(1, 1, 0) {
		t.Error("copies without memory")
	}
	c.Drop()
	if _, tables := c.Stats(); tables != 0 {
		t.Errorf("%d tables after all were dropped", tables)
	}
}

// TestCopiesKnowTheirIndex: a copy that was asked for after an entry was seen has it, and only such a copy answers a
// read that names the entry; with many entries also.
func TestCopiesKnowTheirIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCopies(cache.MinBytes)
		var seen []uint64 // when entry i+1 was seen
		for i := range 100 {
			time.Sleep(time.Second)
			c.Saw(2, rowraft.Index(i+1))
			c.Saw(2, rowraft.Index(i)) // an older reply
			seen = append(seen, c.Now())
		}
		for i, at := range seen {
			since := c.Since(2, rowraft.Index(i+1), time.Hour)
			if since < at {
				t.Fatalf("a copy as of %d answers for entry %d, which was seen at %d", since, i+1, at)
			}
			if got := c.IndexAt(2, at); got > rowraft.Index(i+1) {
				t.Fatalf("a copy as of %d has entry %d, but %d was seen then", at, got, i+1)
			}
		}
		if c.Since(2, 101, time.Hour) != math.MaxUint64 || c.Since(1, 1, time.Hour) != math.MaxUint64 {
			t.Error("a copy answers for an entry that was not seen")
		}
		if got := c.Since(2, 1, time.Second); got != c.Now()-uint64(time.Second) {
			t.Errorf("an old entry: as of %d, want the bound of the age", got)
		}
	})
}
