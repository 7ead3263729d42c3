package raftstore

import (
	"sync"
	"testing"
	"time"
)

// Under a steady load the three replicas of a group never write a snapshot at the same moment. The logic is tested in
// package turns; here the flags travel in real messages.
func TestReplicasOfAClusterTakeTurns(t *testing.T) {
	const (
		every  = 640 << 10
		entry  = 4 << 10
		pause  = 25 * time.Millisecond // an interval is 4 s
		writes = 300 * time.Millisecond
	)
	c := startedCluster(t, 3, func(o *Options) {
		o.SnapshotEveryBytes, o.TrailingLogBytes = every, 1
		o.hooks.tick = 20 * time.Millisecond
	})
	var mu sync.Mutex
	writing, most, begun := 0, 0, map[string]int{}
	for _, n := range c.nodes {
		n.machine.beforeWrite = func() {
			mu.Lock()
			writing++
			most = max(most, writing)
			begun[string(n.id)]++
			mu.Unlock()
			time.Sleep(writes) //tidy:allow sleep the length of a snapshot
			mu.Lock()
			writing--
			mu.Unlock()
		}
	}
	pad := string(make([]byte, entry))
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for range 2*every/entry + 80 {
		c.propose(pad)
		<-tick.C
	}
	mu.Lock()
	defer mu.Unlock()
	if most != 1 {
		t.Errorf("%d replicas wrote a snapshot at the same moment (%v)", most, begun)
	}
	for _, n := range c.nodes {
		if begun[string(n.id)] < 2 {
			t.Errorf("%s took %d snapshots in more than two intervals", n.id, begun[string(n.id)])
		}
	}
}
