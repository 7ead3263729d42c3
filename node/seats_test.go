package node

import (
	"os"
	"slices"
	"testing"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// TestALostMemberOfTheSchedulerIsReplaced: the machine of a founder comes back with an empty
// disk and is started as it was. It gets the seat of its predecessor, which is forgotten,
// keeps it when it restarts, and its vote counts: the group does without another founder.
func TestALostMemberOfTheSchedulerIsReplaced(t *testing.T) {
	// That n3 is down is for one leader to find, which must not lose the lead whenever the machine
	// is busy: without n3 it needs every answer of the other one.
	c := startClusterWith(t, 3, 1, func(cfg *Config) { cfg.Profile = "dense" })
	cl, ctx := c.dial(), testContext(t)
	if _, err := cl.CreateTable(ctx, counterSchema("before"), false); err != nil {
		t.Fatal(err)
	}
	named := func(name string) *rowraftv1.NodeStatus {
		for _, n := range c.status(ctx).GetNodes() {
			if n.GetNode().GetName() == name {
				return n
			}
		}
		return nil
	}
	old := named("n3").GetNode().GetId()
	c.stopNode(2)
	if err := os.RemoveAll(c.nodes[2].cfg.DataDir); err != nil {
		t.Fatal(err)
	}
	c.restart(2)
	eventually(t, ctx, "the new n3 has the seat and a replica, and the old one is forgotten", func() bool {
		n := named("n3")
		return len(c.status(ctx).GetNodes()) == 3 && n.GetNode().GetId() != old && n.GetNode().GetScheduler() && len(n.GetReplicas()) == 1
	})
	c.stopNode(2)
	c.restart(2)
	c.stopNode(0)
	if _, err := cl.CreateTable(ctx, counterSchema("after"), false); err != nil {
		t.Fatalf("without n1, by the votes of n2 and the new n3: %v", err)
	}
	m := c.status(ctx).GetMap()
	if len(m.GetTables()) != 2 || len(m.GetNodes()) != 3 || slices.ContainsFunc(m.GetNodes(), func(n *rowraftv1.Node) bool { return n.GetId() == old || !n.GetScheduler() }) {
		t.Errorf("the map has tables %v and nodes %v", m.GetTables(), m.GetNodes())
	}
}
