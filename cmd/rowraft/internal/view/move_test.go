package view

import (
	"strings"
	"testing"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// TestAServerThatLeftHasAName in the moves away from it.
func TestAServerThatLeftHasAName(t *testing.T) {
	r := &rowraftv1.StatusReply{
		Map:        &rowraftv1.Map{Nodes: []*rowraftv1.Node{{Id: "id-1", Name: "n1"}}},
		Operations: []*rowraftv1.Operation{{Node: "id-4", Name: "n4"}, {Node: "id-1", Name: "old"}},
	}
	for _, tc := range [][2]string{{"id-1", "n1"}, {"id-4", "n4"}, {"0123456789abcdef", NameOr("", "0123456789abcdef")}} {
		m := NewMove(r, &rowraftv1.Move{From: &rowraftv1.Replica{Node: tc[0]}, To: &rowraftv1.Replica{Node: tc[0]}}, nil)
		if m.From != tc[1] || m.To != tc[1] {
			t.Errorf("server %s: from %s to %s, want %s", tc[0], m.From, m.To, tc[1])
		}
	}
}

func TestNoOperations(t *testing.T) {
	for ended, want := range map[bool]string{false: "No operation runs.\n", true: "No operation runs or has run.\n"} {
		var b strings.Builder
		if err := NewOperationList(&rowraftv1.StatusReply{}, ended).Print(&b, false); err != nil || b.String() != want {
			t.Errorf("ended %v: %q, %v; want %q", ended, b.String(), err, want)
		}
	}
}
