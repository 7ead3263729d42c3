package meta

import (
	"strings"
	"testing"

	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// cmdAlone registers a scheduler in a process of its own.
func cmdAlone(id string) *rowraftv1.MetaCommand {
	c := cmdNode(id, "", id+":1")
	c.GetPutNode().Node.Scheduler, c.GetPutNode().Node.NoShards = true, true
	return c
}

// A scheduler that is a process of its own gets no replica, by any command.
func TestASchedulerOfItsOwnGetsNoReplicas(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c"))
	a.do(cmdAlone("s"))
	refused := func(what string, c *rowraftv1.MetaCommand, says string) {
		t.Helper()
		before := a.m.view.Map().Version
		if err, ok := a.do(c).(error); !ok || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want an error that says %q", what, err, says)
		}
		if after := a.m.view.Map().Version; after != before {
			t.Errorf("%s changed the map", what)
		}
	}
	for _, id := range []string{"a", "b", "c"} {
		a.do(cmdNode(id, "", id+":1"))
	}
	if got := a.m.view.Map().Servers(); len(got) != 3 || got[0].ID != "a" {
		t.Errorf("servers %+v, want a, b, c", got)
	}
	refused("shards on it", cmdShards(1, "a", "b", "s"), "unknown server")
	a.do(cmdShards(1, "a", "b"))
	refused("a move to it", cmdStart(0, "a", "s", "new", a.m.view.Map().Version), "is a scheduler and holds no replicas")
	refused("a server that becomes one", cmdAlone("a"), "with-scheduler")
	lone := cmdAlone("d")
	lone.GetPutNode().Node.Scheduler = false
	refused("no shards and no scheduler", lone, "with-scheduler")
	a.do(cmdAlone("c")) // it holds nothing
	if n, _ := a.m.view.Map().Node("c"); n != (clustermap.Node{ID: "c", Addr: "c:1", PeerAddr: "pc:1", Scheduler: true,
		NoShards: true}) {
		t.Errorf("node c is %+v", n)
	}
}

// TestGoldenSchedulerOfItsOwn reads an entry and a snapshot of version 6 that
// testdata/golden.py wrote by hand from docs/formats/metadata.md.
func TestGoldenSchedulerOfItsOwn(t *testing.T) {
	want := clustermap.Node{ID: "n-1", Name: "s1", Addr: "h:1", PeerAddr: "h:2", Scheduler: true, NoShards: true}
	entry := goldenCommand(t, "put_scheduler", &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_PutNode{
		PutNode: &rowraftv1.MetaPutNode{Node: &rowraftv1.Node{Id: "n-1", Name: "s1", Addr: "h:1", PeerAddr: "h:2",
			Scheduler: true, NoShards: true}}}})
	m := New(NewView())
	if err := m.state.init("c-1"); err != nil {
		t.Fatal(err)
	}
	if result := m.Apply(3, entry); result != nil {
		t.Fatalf("Apply: %v", result)
	}
	if got := m.view.Map().Nodes; len(got) != 1 || got[0] != want {
		t.Errorf("the entry reads %+v, want %+v", got, want)
	}
	if got := wantSnapshot(t, m, "scheduler").view.Map().Nodes; len(got) != 1 || got[0] != want {
		t.Errorf("the snapshot reads %+v, want %+v", got, want)
	}
}
