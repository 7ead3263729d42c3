package scheduler

import (
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// TestServersWithoutANameGetOne: the number after the highest one in use, and the same name again after a restart.
func TestServersWithoutANameGetOne(t *testing.T) {
	s, _ := newLeader(t, 9, 4)
	reconcile(t, s)
	register := func(n *rowraftv1.Node) (string, error) {
		n.Addr, n.PeerAddr = "h:"+n.Id, "p:"+n.Id
		reply, err := s.RegisterNode(t.Context(), &rowraftv1.RegisterNodeRequest{ClusterId: s.clusterID(), Node: n,
			FormatVersion: uint32(wire.NewestVersion())})
		return reply.GetName(), err
	}
	for _, step := range []struct{ id, name, want string }{
		{"a", "", "n1"},
		{"b", "n7", "n7"},
		{"c", "", "n8"},
		{"d", "n2x", "n2x"},
		{"e", "", "n9"},
		{"a", "", "n1"}, // it has started again
		{"c", "west", "west"},
		{"c", "", "west"},
		{"f", "n99999999999999999999", "n99999999999999999999"},
		{"g", "", "n10"},
	} {
		if got, err := register(&rowraftv1.Node{Id: step.id, Name: step.name}); err != nil || got != step.want {
			t.Errorf("server %s with name %q: %q, %v, want %q", step.id, step.name, got, err, step.want)
		}
	}
	if got, err := register(&rowraftv1.Node{Id: "x", NoShards: true, Scheduler: true}); err != nil || got != "s1" {
		t.Errorf("a scheduler: %q, %v, want s1", got, err)
	}
	_, err := register(&rowraftv1.Node{Id: "h", Name: "n7"})
	testutil.WantCode(t, err, rowraft.CodeAlreadyExists, "h:b", "has the name n7 already", "--name")
	if strings.Contains(err.Error(), "node ") {
		t.Errorf("%v: want server", err)
	}
	// What the refusal advises works, also for a server whose name was given away while it was down.
	for _, step := range [][2]string{{"h", "n70"}, {"b", "east"}, {"i", "n7"}} {
		if got, err := register(&rowraftv1.Node{Id: step[0], Name: step[1]}); err != nil || got != step[1] {
			t.Errorf("server %s with name %q: %q, %v", step[0], step[1], got, err)
		}
	}
	_, err = register(&rowraftv1.Node{Id: "b", Name: "n7"}) // the name that its data directory stores
	testutil.WantCode(t, err, rowraft.CodeAlreadyExists, "h:i", "with another --name")
	if got, err := register(&rowraftv1.Node{Id: "b", Name: "south"}); err != nil || got != "south" {
		t.Errorf("with another name: %q, %v", got, err)
	}
}
