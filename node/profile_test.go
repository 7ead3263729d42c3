package node

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/clustermap"
)

// The timers follow the number of replicas: up at the bound, and down a quarter below it.
func TestProfilesFollowTheReplicas(t *testing.T) {
	now := ""
	for _, step := range []struct {
		replicas int
		want     string
	}{
		{1, "fast"}, {24, "fast"}, {25, "default"}, {24, "default"}, {19, "default"}, {18, "fast"},
		{101, "dense"}, {100, "dense"}, {76, "dense"}, {75, "default"}, {256, "dense"}, {0, "fast"},
	} {
		if got := autoProfile(now, step.replicas); got != step.want {
			t.Errorf("%d replicas after %q: %q, want %q", step.replicas, now, got, step.want)
		}
		now = step.want
	}
	if got := autoProfile("", 60); got != "default" {
		t.Errorf("60 replicas at first: %q, want default", got)
	}
}

// A server chooses its timers by the map, reports them, and keeps configured ones.
func TestAServerTellsItsTimers(t *testing.T) {
	for given, want := range map[string]string{profileAuto: "fast", "dense": "dense", "": "default"} {
		c := startClusterWith(t, 1, 2, func(cfg *Config) { cfg.Profile = given })
		line := fmt.Sprintf("rowraft_raft_profile_info{profile=%q} 1\n", want)
		if _, text := c.nodes[0].get(t, "/metrics"); !strings.Contains(text, line) {
			t.Errorf("profile %q: the metrics lack %s", given, line)
		}
	}
}

// All servers choose by the server with the most replicas.
func TestTheFullestServerCounts(t *testing.T) {
	m := &clustermap.Map{
		Nodes: []clustermap.Node{{ID: "a"}, {ID: "b"}},
		Shards: []clustermap.Shard{{Replicas: []clustermap.Replica{{ID: "1", Node: "a"}, {ID: "2", Node: "b"}}},
			{Replicas: []clustermap.Replica{{ID: "3", Node: "b"}}}},
	}
	if got := mostReplicas(m); got != 2 {
		t.Errorf("%d replicas, want the 2 of b", got)
	}
}
