package main

import (
	"strings"
	"testing"

	"google.golang.org/grpc"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// plannedRestores are restores of a cluster with two tables.
type plannedRestores struct {
	rowraftv1.UnimplementedCheckpointsServer
	calls chan *rowraftv1.RestoreCheckpointRequest // those that are no plans
}

func (p plannedRestores) RestoreCheckpoint(req *rowraftv1.RestoreCheckpointRequest,
	s grpc.ServerStreamingServer[rowraftv1.RestoreCheckpointReply]) error {
	if req.GetPlan() {
		return s.Send(&rowraftv1.RestoreCheckpointReply{Phase: "done", Changes: []*rowraftv1.RestoreChange{
			{Name: "a", Id: 1, Rows: 1500, Comes: true, Brings: 20}, {Name: "b", Id: 2, Rows: 7},
			{Name: "c", Comes: true, Brings: 9},
		}})
	}
	p.calls <- req
	return s.Send(&rowraftv1.RestoreCheckpointReply{Phase: "done"})
}

// TestARestoreAsks before tables are lost, and tells the server what it has shown.
func TestARestoreAsks(t *testing.T) {
	calls := make(chan *rowraftv1.RestoreCheckpointRequest, 1)
	addr := start(t, &fakeCluster{}, func(s *grpc.Server) {
		rowraftv1.RegisterCheckpointsServer(s, plannedRestores{calls: calls})
	})
	for _, tc := range []struct {
		args []string
		runs bool
	}{
		{[]string{"--replace"}, false},
		{[]string{"--replace", "--yes"}, true},
		{[]string{"--replace", "--dry-run"}, true},
		{nil, true}, // which the server refuses
	} {
		got := rowraftCmd(t, append([]string{"checkpoint", "restore", "/mnt/x/a", "--insecure", "--endpoints", addr},
			tc.args...)...)
		for _, says := range []string{"a, 1,500 rows: replaced by 20 rows", "b, 7 rows: REMOVED"} {
			if !strings.Contains(got.errout, says) {
				t.Errorf("%v: it does not say %q: %s", tc.args, says, got.errout)
			}
		}
		select {
		case req := <-calls:
			if !tc.runs || len(req.GetAgreed()) != 2 {
				t.Errorf("%v: the server was asked, with %v", tc.args, req)
			}
		default:
			if tc.runs || !strings.Contains(got.errout, "--yes") {
				t.Errorf("%v: the server was not asked: %s", tc.args, got.errout)
			}
		}
	}
}
