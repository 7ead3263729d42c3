package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/cli"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// leaving is moving while n3 is replaced and n4 is drained; n2 was decommissioned once.
func leaving() *rowraftv1.StatusReply {
	r := moving()
	for i, n := range r.Nodes {
		n.InStateNs, n.Version, n.UptimeNs = uint64(i+1)*3661e9, "v0.6.0", uint64(i+1)*7200e9
		n.Node.Labels = "zone=z" + n.Node.Name[1:]
	}
	r.Nodes[0].Profile, r.Nodes[2].Profile, r.Nodes[3].MetadataStandby = "fast", "default", true
	r.Nodes[2].InStateNs = 25_500e6
	r.Nodes[3].Node.Intent = rowraftv1.NodeIntent_NODE_INTENT_DRAIN
	r.Moves[0].Move.Reason, r.Moves[1].Move.Reason = rowraftv1.MoveReason_MOVE_REASON_DEAD,
		rowraftv1.MoveReason_MOVE_REASON_DEAD
	r.FinishedMoves[1].Reason, r.FinishedMoves[1].From = rowraftv1.MoveReason_MOVE_REASON_MISSING, nil
	at := func(minute int) uint64 { return uint64(time.Date(2026, 1, 2, 3, minute, 5, 0, time.UTC).UnixNano()) }
	r.FinishedMoves[0].BegunNs, r.FinishedMoves[0].EndedNs = at(5), at(17)
	op := func(id uint64, kind rowraftv1.OperationKind, i int, state rowraftv1.OperationState, total, left uint64,
		waits string) *rowraftv1.Operation {
		return &rowraftv1.Operation{Id: id, Kind: kind, Node: r.Nodes[i].Node.Id, Name: r.Nodes[i].Node.Name, State: state,
			Total: total, Left: left, WaitingFor: waits}
	}
	r.Operations = []*rowraftv1.Operation{
		op(3, rowraftv1.OperationKind_OPERATION_KIND_DECOMMISSION, 1, rowraftv1.OperationState_OPERATION_STATE_CANCELLED, 2,
			0, ""),
		op(4, rowraftv1.OperationKind_OPERATION_KIND_REPLACE, 2, rowraftv1.OperationState_OPERATION_STATE_RUNNING, 2, 2,
			"shard 0: the learner is 4331 entries behind"),
		op(9, rowraftv1.OperationKind_OPERATION_KIND_DRAIN, 3, rowraftv1.OperationState_OPERATION_STATE_DONE, 1, 0, ""),
	}
	r.Operations[0].BegunNs, r.Operations[0].EndedNs = at(2), at(2)+1_500e6
	r.Operations[2].BegunNs, r.Operations[2].EndedNs = at(20), at(21)
	return r
}

// ChangeNode drains n1 without a risk; n2 is needed, n3 is gone.
func (f *fakeCluster) ChangeNode(_ context.Context,
	req *rowraftv1.ChangeNodeRequest) (*rowraftv1.ChangeNodeReply, error) {
	reply := &rowraftv1.ChangeNodeReply{Accepted: true, Plan: []string{"The lead of shard 0 goes to other replicas."}}
	for _, n := range f.status.Map.Nodes {
		if n.Name == req.Node || n.Id == req.Node {
			reply.Node = n
		}
	}
	switch reply.Node.GetName() {
	case "":
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "there is no server %q", req.Node)
	case "n2":
		reply.Risks = []string{"Shard 1 would have no majority without n2."}
		if reply.Accepted = req.Force; !req.Force {
			return reply, nil
		}
	}
	if reply.Node.Intent == req.Intent {
		reply.Plan = []string{reply.Node.Name + " is that already."}
	} else if !req.DryRun {
		f.changed = append(f.changed, reply.Node.Name)
		reply.Operation = &rowraftv1.Operation{Id: 9, Kind: rowraftv1.OperationKind_OPERATION_KIND_DRAIN, Node: reply.Node.Id,
			Name: reply.Node.Name, State: rowraftv1.OperationState_OPERATION_STATE_RUNNING, Total: 1, Left: 1}
	}
	return reply, nil
}

func TestGoldenOutputOfNodes(t *testing.T) {
	for name, args := range map[string][]string{
		"server-list":          {"server", "list"},
		"server-list-wide":     {"server", "list", "-o", "wide"},
		"server-list-json":     {"server", "list", "-o", "json"},
		"server-status":        {"server", "status", "n3"},
		"server-status-json":   {"server", "status", "00000004", "-o", "json"},
		"server-drain-dry-run": {"server", "drain", "n1", "--dry-run"},
		"server-drain":         {"server", "drain", "n1", "--yes"},
		"server-drain-json":    {"server", "drain", "n1", "--yes", "--detach", "-o", "json"},
		"operation-list":       {"operation", "list"},
		"operation-list-all":   {"operation", "list", "--all"},
		"operation-list-json":  {"operation", "list", "--all", "-o", "json"},
		"operation-watch":      {"operation", "watch", "8"},
	} {
		t.Run(name, func(t *testing.T) {
			addr := start(t, &fakeCluster{status: leaving()})
			got := rowraftCmd(t, append(args, "--insecure", "--endpoints", addr)...)
			if got.code != cli.ExitDone || got.errout != "" {
				t.Fatalf("exit code %d, stderr %q", got.code, got.errout)
			}
			golden(t, name, got.out)
		})
	}
}

// What could cost a majority needs --force and the server's name; what changes anything, a yes.
func TestNodesChangeOnAWordOnly(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	stdin := os.Stdin
	os.Stdin = null
	defer func() { os.Stdin = stdin }()
	for _, tc := range []struct {
		args    string
		code    int
		says    string
		changed string
	}{
		{args: "drain n1", code: cli.ExitRefused, says: "give --yes"},
		{args: "drain n1 --yes --detach", changed: "n1"},
		{args: "drain n2 --yes", code: cli.ExitRefused, says: "--force"},
		{args: "drain n2 --dry-run", code: cli.ExitRefused, says: "would be refused"},
		{args: "drain n2 --force --yes", code: cli.ExitRefused, says: "--confirm n2"},
		{args: "drain n2 --force --confirm n1", code: cli.ExitRefused, says: "is not the name"},
		{args: "drain n2 --force --confirm n2 --detach", changed: "n2"},
		{args: "drain n7 --yes", code: cli.ExitFailed, says: "no server"},
		{args: "status n7", code: cli.ExitUsage, says: "did you mean"},
		{args: "undrain n1"}, // nothing to do, so nothing to ask
		{args: "undrain n1 --force", code: cli.ExitUsage, says: "--force"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			f := &fakeCluster{status: leaving()}
			addr := start(t, f)
			got := rowraftCmd(t, append(append([]string{"server"}, strings.Fields(tc.args)...), "--insecure", "--endpoints",
				addr)...)
			if changed := strings.Join(f.changed, " "); got.code != tc.code || !strings.Contains(got.errout, tc.says) ||
				changed != tc.changed {
				t.Errorf("exit code %d, want %d; stderr %q, want %q; changed %q, want %q", got.code, tc.code, got.errout, tc.says,
					changed, tc.changed)
			}
		})
	}
}

// Ctrl-C leaves the operation alone, and says so.
func TestWatchingAnOperationEnds(t *testing.T) {
	addr := start(t, &fakeCluster{status: leaving()})
	ctx, cancel := context.WithCancel(t.Context())
	out := &cancelOnWrite{cancel: cancel}
	var errout bytes.Buffer
	code := run(ctx, []string{"operation", "watch", "4", "--insecure", "--endpoints", addr}, out, &errout)
	if code != cli.ExitInterrupted || !strings.Contains(errout.String(), "operation 4 continues") ||
		!strings.Contains(errout.String(), "`rowraft operation watch 4`") {
		t.Errorf("exit code %d, stderr %q", code, &errout)
	}
	if got := rowraftCmd(t, "operation", "watch", "3", "--insecure", "--endpoints", addr); got.code != cli.ExitFailed ||
		!strings.Contains(got.errout, "was cancelled") {
		t.Errorf("exit code %d, stderr %q", got.code, got.errout)
	}
	for id, says := range map[string]string{"9": "has ended", "4": "when the server is back", "77": "no operation",
		"x": "a number"} {
		if got := rowraftCmd(t, "operation", "cancel", id, "--insecure", "--endpoints", addr); got.code == cli.ExitDone ||
			!strings.Contains(got.errout, says) {
			t.Errorf("cancel %s: exit code %d, stderr %q, want %q", id, got.code, got.errout, says)
		}
	}
}

type cancelOnWrite struct{ cancel context.CancelFunc }

func (w *cancelOnWrite) Write(b []byte) (int, error) {
	w.cancel()
	return len(b), nil
}
