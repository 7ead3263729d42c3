package node

import (
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// TestHotKeysAreCounted: a server reports the rows that it pulled and pushed, and the keys that are accessed most.
func TestHotKeysAreCounted(t *testing.T) {
	c, ctx := startCluster(t, 1, 1), testutil.Context(t)
	cl := c.dial()
	table, err := cl.CreateTable(ctx, counterSchema("clicks"), false)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]rowraft.Key, 64)
	const rounds = 200
	for round := range rounds {
		for i := range keys {
			keys[i] = rowraft.Key(1000 + 64*round + i)
		}
		keys[0], keys[1] = 5, 6
		if round%2 == 0 {
			keys[1] = 7
		}
		if err := table.Pull(ctx, keys, make([]float32, 4*len(keys))); err != nil {
			t.Fatal(err)
		}
		slices.Sort(keys)
		if _, err := table.Push(ctx, keys[:2], make([]float32, 8)); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := bareDial(c.nodes[0].addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	reply, err := rowraftv1.NewReplicasClient(conn).HotKeys(ctx, &rowraftv1.HotKeysRequest{Limit: 3})
	if err != nil {
		t.Fatal(err)
	}
	h := reply.Shards[0]
	if len(reply.Shards) != 1 || !h.Leader || h.OverNs == 0 || len(h.Tables) != 1 ||
		h.Tables[0].Table != uint64(table.Schema().ID) {
		t.Fatalf("%+v", reply)
	}
	// More, if a slow machine made the client send again; less, if it took longer than a half-life.
	if p := h.Tables[0].Pulled; p < rounds*64/4 || p > rounds*64*2 {
		t.Errorf("%v rows pulled, want %d", p, rounds*64)
	}
	if p := h.Tables[0].Pushed; p < rounds*2/4 || p > rounds*2*2 {
		t.Errorf("%v rows pushed, want %d", p, rounds*2)
	}
	if len(h.Keys) != 3 || h.Keys[0].Key != 5 {
		t.Errorf("the hottest keys are %v, want 5 first", h.Keys)
	}
}
