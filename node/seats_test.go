package node

import (
	"github.com/rowraft/rowraft/internal/testutil"

	"os"
	"slices"
	"testing"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// TestALostMemberOfTheSchedulerIsReplaced: the machine of a founder restarts with an empty disk and the
// same configuration. It gets the seat of its predecessor, which the group forgets, and keeps the seat when
// it restarts. Its vote counts: the group works without another founder.
func TestALostMemberOfTheSchedulerIsReplaced(t *testing.T) {
	// One leader must find out that n3 is down, so it must not lose the leadership when the machine is
	// busy: without n3 it needs every answer of the other server.
	c := startClusterWith(t, 3, 1, func(cfg *Config) { cfg.Profile = "dense" })
	cl, ctx := c.dial(), testutil.Context(t)
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
	testutil.Eventually(t, "the new n3 has the seat and a replica, and the old one is forgotten", func() bool {
		n := named("n3")
		return len(c.status(ctx).GetNodes()) == 3 && n.GetNode().GetId() != old && n.GetNode().GetScheduler() &&
			len(n.GetReplicas()) == 1
	})
	c.stopNode(2)
	c.restart(2)
	c.stopNode(0)
	if _, err := cl.CreateTable(ctx, counterSchema("after"), false); err != nil {
		t.Fatalf("without n1, by the votes of n2 and the new n3: %v", err)
	}
	m := c.status(ctx).GetMap()
	if len(m.GetTables()) != 2 || len(m.GetNodes()) != 3 ||
		slices.ContainsFunc(m.GetNodes(), func(n *rowraftv1.Node) bool { return n.GetId() == old || !n.GetScheduler() }) {
		t.Errorf("the map has tables %v and nodes %v", m.GetTables(), m.GetNodes())
	}
}
