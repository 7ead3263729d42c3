package cache

import (
	"math/rand/v2"
	"testing"

	"github.com/rowraft/rowraft"
)

// TestPlacesAgainstAMemory: the memory has the row of each key of each batch at its place, as new as asked for, and no
// two keys of a batch have one place. Batches are larger than the cache, smaller, and in few sets.
func TestPlacesAgainstAMemory(t *testing.T) {
	for _, tc := range []struct{ rows, keys, batch int }{{8, 40, 12}, {64, 40, 12}, {256, 2000, 100}, {8, 20, 20}} {
		p := NewPlaces(tc.rows)
		type row struct {
			key  rowraft.Key
			asOf uint64
		}
		memory := make([]row, p.Rows(tc.batch))
		r := rand.New(rand.NewPCG(uint64(tc.rows), uint64(tc.keys)))
		places := make([]int32, tc.batch)
		for now := uint64(10); now < 2000; now++ {
			keys := make([]rowraft.Key, 0, tc.batch)
			for _, k := range r.Perm(tc.keys)[:1+r.IntN(tc.batch)] {
				keys = append(keys, rowraft.Key(k+1))
			}
			atLeast := now - r.Uint64N(8)
			old := p.Old(keys, now, atLeast)
			p.Assign(keys, old, now, places)
			for _, i := range old {
				memory[places[i]] = row{keys[i], now}
			}
			seen := make(map[int32]bool)
			for i, k := range keys {
				m := memory[places[i]]
				if places[i] == 0 || seen[places[i]] || m.key != k || m.asOf < atLeast {
					t.Fatalf("%+v, batch %d: key %d is at place %d, which has %+v; want the row as of %d or newer", tc, now, k,
						places[i], m, atLeast)
				}
				seen[places[i]] = true
			}
			if forget := keys[0]; r.IntN(10) == 0 {
				p.Forget(forget)
				if len(p.Old([]rowraft.Key{forget}, now, 0)) == 0 {
					t.Fatalf("key %d has a row after Forget", forget)
				}
			}
		}
		s := p.Stats()
		t.Logf("%+v: %+v", tc, s)
		if s.Hits == 0 || s.Stale == 0 && tc.rows > 8 || s.Misses == 0 || tc.rows < tc.keys && s.Evicted == 0 {
			t.Errorf("%+v: %+v, want some of each", tc, s)
		}
	}
}
