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
	// One of 16 keys is counted: about 25 accesses of key 5, and 3 of each of the keys 6 to 13, so that chance does not
	// put another key first.
	const rounds, n = 200, 16
	keys := make([]rowraft.Key, n)
	for round := range rounds {
		for i := range keys {
			keys[i] = rowraft.Key(1000 + n*round + i)
		}
		keys[0], keys[1] = 5, rowraft.Key(6+round%8)
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
	if p := h.Tables[0].Pulled; p < rounds*n/4 || p > rounds*n*2 {
		t.Errorf("%v rows pulled, want %d", p, rounds*n)
	}
	if p := h.Tables[0].Pushed; p < rounds*2/4 || p > rounds*2*2 {
		t.Errorf("%v rows pushed, want %d", p, rounds*2)
	}
	if len(h.Keys) != 3 || h.Keys[0].Key != 5 {
		t.Errorf("the hottest keys are %v, want 5 first", h.Keys)
	}
}
