package clustermap

import "testing"

func TestWithNames(t *testing.T) {
	const (
		named   = "2bee7fc5-c8b2-4f33-a1ec-a30d12c28fb0"
		unnamed = "17f39e8e-97eb-4789-afb4-a63e5ad81ba7"
		voter   = "c0ac9b63-1125-4908-b3bc-80002ddc3d3e"
		learner = "6a836bda-5cc8-4544-a998-06d5e778e7b1"
		removed = "27fe21b0-addc-4dd8-9632-170d53431879"
		other   = "1cfc7730-279d-435c-9478-08f9de31dc9b"
	)
	m := &Map{
		Nodes: []Node{{ID: unnamed}, {ID: named, Name: "n1"}},
		Shards: []Shard{{Replicas: []Replica{{ID: voter, Node: named}}, Learners: []Replica{{ID: learner, Node: unnamed}},
			Removed: []Removed{{Replica: Replica{ID: removed, Node: named}}}}},
	}
	for in, want := range map[string]string{
		"":                                       "",
		"dial server " + named + " at 127.0.0.1": "dial server n1 at 127.0.0.1",
		"{Voter " + voter + " " + named + "}":    "{Voter c0ac9b63@n1 n1}",
		learner:                                  "6a836bda@" + unnamed,
		removed + ", " + other + "; a-b-c-d-e":   "27fe21b0@n1, " + other + "; a-b-c-d-e",
		unnamed:                                  unnamed,
		"x" + named:                              "x" + named, // part of a longer word
	} {
		if got := m.WithNames(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if got := (*Map)(nil).WithNames(named); got != named {
		t.Errorf("without a map: %q", got)
	}
}
