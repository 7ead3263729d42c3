package main

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/cli"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// plannedRestores are restores of a cluster with two tables.
type plannedRestores struct {
	rowraftv1.UnimplementedCheckpointsServer
	calls chan *rowraftv1.RestoreCheckpointRequest // those that are no plans
	lost  *atomic.Int32                            // so many calls end because the leader changes; nil: none
}

func (p plannedRestores) loseLeader() error {
	if p.lost != nil && p.lost.Add(-1) >= 0 {
		return rowraft.Errorf(rowraft.CodeLeadershipLost, "the leader changed")
	}
	return nil
}

func (p plannedRestores) CreateCheckpoint(req *rowraftv1.CreateCheckpointRequest,
	s grpc.ServerStreamingServer[rowraftv1.CreateCheckpointReply]) error {
	if err := p.loseLeader(); err != nil {
		return err
	}
	manifest, err := os.ReadFile("../../checkpoint/testdata/manifest.txt")
	if err != nil {
		return err
	}
	return s.Send(&rowraftv1.CreateCheckpointReply{Phase: "done", Name: req.GetName(), Manifest: manifest,
		Note: fmt.Sprintf("attempt %d of %d bytes", req.GetAttempt(), len(req.GetOperation()))})
}

func (p plannedRestores) RestoreCheckpoint(req *rowraftv1.RestoreCheckpointRequest,
	s grpc.ServerStreamingServer[rowraftv1.RestoreCheckpointReply]) error {
	if err := p.loseLeader(); err != nil {
		return err
	}
	if req.GetPlan() {
		return s.Send(&rowraftv1.RestoreCheckpointReply{Phase: "done", Decided: 1 << 16, Changes: []*rowraftv1.RestoreChange{
			{Name: "a", Id: 1, Rows: 1500, Comes: true, Brings: 20}, {Name: "b", Id: 2, Rows: 7},
			{Name: "c", Comes: true, Brings: 9},
		}})
	}
	p.calls <- req
	if !req.GetReplace() {
		return rowraft.Errorf(rowraft.CodeAlreadyExists, "tables of the cluster hold rows: allow that with --replace")
	}
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
			if !tc.runs || len(req.GetAgreed()) != 2 || req.GetAfter() != 1<<16 {
				t.Errorf("%v: the server was asked, with %v", tc.args, req)
			}
			if want := map[bool]int{true: cli.ExitDone, false: cli.ExitRefused}[req.GetReplace()]; got.code != want {
				t.Errorf("%v: exit code %d, want %d", tc.args, got.code, want)
			}
		default:
			if tc.runs || !strings.Contains(got.errout, "--yes") {
				t.Errorf("%v: the server was not asked: %s", tc.args, got.errout)
			}
		}
	}
}

// TestCheckpointCommandsFollowTheLeader: the scheduler's leader changes under a restore and under a checkpoint.
func TestCheckpointCommandsFollowTheLeader(t *testing.T) {
	calls, lost := make(chan *rowraftv1.RestoreCheckpointRequest, 1), new(atomic.Int32)
	addr := start(t, &fakeCluster{}, func(s *grpc.Server) {
		rowraftv1.RegisterCheckpointsServer(s, plannedRestores{calls: calls, lost: lost})
	})
	for _, tc := range []struct{ args, says string }{
		{"restore /mnt/x/a --replace --yes", "restored 0 rows"},
		{"create /mnt/x --name a", "checkpoint a: 3 rows (attempt 2 of 16 bytes)"},
		{"create /mnt/x", "(attempt 2 of 16 bytes)"},
	} {
		lost.Store(2)
		args := append([]string{"checkpoint"}, strings.Fields(tc.args)...)
		got := rowraftCmd(t, append(args, "--insecure", "--endpoints", addr)...)
		if got.code != cli.ExitDone || !strings.Contains(got.out, tc.says) ||
			strings.Count(got.errout, "the scheduler's leader changed") != 1 { // said once
			t.Errorf("%s: %+v", tc.args, got)
		}
	}
}
