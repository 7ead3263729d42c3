package client

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// TestPerShard: all goroutines find the same state of a shard, and only used pages are visited.
func TestPerShard(t *testing.T) {
	var s perShard[atomic.Uint64]
	used := []rowraft.ShardID{0, 255, 256, 1023, clustermap.MaxShards - 1}
	var wg sync.WaitGroup
	for range 8 {
		for _, id := range used {
			wg.Go(func() { s.at(id).Add(uint64(id) + 1) })
		}
	}
	wg.Wait()
	n, last := 0, -1
	for id, st := range s.all() {
		if int(id) <= last || st != s.at(id) {
			t.Errorf("shard %d comes after shard %d, or with the state of another shard", id, last)
		}
		if n, last = n+1, int(id); st.Load() != 0 && st.Load() != 8*(uint64(id)+1) {
			t.Errorf("shard %d has counted %d", id, st.Load())
		}
	}
	if n != len(used)*shardsPerPage {
		t.Errorf("%d shards were visited, want %d", n, len(used)*shardsPerPage)
	}
}
