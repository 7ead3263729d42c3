package route

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// sixServers is a map of six servers, and two shards with three replicas each.
func sixServers() *clustermap.Map {
	m := &clustermap.Map{Shards: make([]clustermap.Shard, 2)}
	for i, id := range []rowraft.NodeID{"a", "b", "c", "d", "e", "f"} {
		m.Nodes = append(m.Nodes, clustermap.Node{ID: id})
		m.Shards[i/3].Replicas = append(m.Shards[i/3].Replicas, clustermap.Replica{Node: id})
	}
	m.Nodes = append(m.Nodes, clustermap.Node{ID: "scheduler", NoShards: true})
	return m
}

// TestReadsTakeTurnsOverAllServers: each server is the first of as many reads, for all shards of a read alike, and the
// replicas come after it.
func TestReadsTakeTurnsOverAllServers(t *testing.T) {
	var s Spread
	m, first := sixServers(), make(map[rowraft.NodeID]int)
	for range 60 {
		turn := s.Next(true)
		zero, one := s.Order(m, 0, turn), s.Order(m, 1, turn)
		if zero[0] != one[0] {
			t.Fatalf("one read asks %s and %s first", zero[0], one[0])
		}
		first[zero[0]]++
		rest := slices.DeleteFunc(slices.Clone(zero), func(n rowraft.NodeID) bool { return n > "c" })
		slices.Sort(rest)
		if !slices.Equal(rest, []rowraft.NodeID{"a", "b", "c"}) || len(zero) > 4 {
			t.Fatalf("a read of shard 0 asks %v, want its replicas too, once each", zero)
		}
	}
	for node, n := range first {
		if n != 10 || node == "scheduler" {
			t.Errorf("server %s is the first of %d reads, want 10 of each", node, n)
		}
	}
	if got := s.Order(m, 1, s.Next(false)); len(got) != 3 || slices.Min(got) != "d" {
		t.Errorf("a read that copies cannot answer asks %v, want the replicas of shard 1", got)
	}
	s.Shun(0, "f")
	s.Shun(0, "a")
	clear(first)
	for range 120 {
		got := s.Order(m, 0, s.Next(true))
		if first[got[0]]++; got[0] == "f" || got[len(got)-1] != "a" {
			t.Errorf("%v: a server that failed is not the last", got)
		}
	}
	for node, n := range first {
		if n < 20 || n > 40 {
			t.Errorf("with two of six servers away, %s is the first of %d reads of 120, want about 30", node, n)
		}
	}
}

// TestReadsStayWithReplicasIfCopiesDoNotHelp: after a trial in which most rows had to be fetched, only replicas are
// asked for a while.
func TestReadsStayWithReplicasIfCopiesDoNotHelp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Spread
		wide := func() bool { return s.Next(true).wide }
		report := func(fetched int) {
			for range trial {
				s.Copied(16, fetched)
			}
		}
		if report(8); !wide() {
			t.Error("half of the rows came from copies: want all servers")
		}
		if report(9); wide() {
			t.Error("most rows were fetched: want replicas only")
		}
		time.Sleep(narrowFor + 1)
		if !wide() {
			t.Error("no other trial")
		}
		if report(0); !wide() {
			t.Error("all rows came from copies: want all servers")
		}
	})
}

// The number of hedges is bounded, however slow the replicas are.
func TestHedgesAreBounded(t *testing.T) {
	var s Spread
	for range 10 * hedgeBurst * hedgeEvery {
		s.Read()
	}
	n := 0
	for s.MayHedge() {
		n++
	}
	if n != hedgeBurst {
		t.Errorf("%d hedges at once, want %d", n, hedgeBurst)
	}
	for range hedgeEvery {
		s.Read()
	}
	if !s.MayHedge() || s.MayHedge() {
		t.Errorf("want one hedge for %d reads", hedgeEvery)
	}
}
