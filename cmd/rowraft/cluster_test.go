package main

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/rpc/rpctest"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// well is sample with its third server at work.
func well() *rowraftv1.StatusReply {
	r := sample()
	r.Problems, r.Nodes[2].State, r.Nodes[2].SinceHeartbeatNs = nil, "up", 100e6
	r.Nodes[2].Replicas = []*rowraftv1.ReplicaStatus{replica(0, "repl-c", "follower", "00000001-aaaa", 1204331),
		replica(1, "repl-f", "follower", "00000002-aaaa", 1204331)}
	r.Nodes[0].Replicas[1] = replica(1, "repl-d", "follower", "00000002-aaaa", 1204331)
	for _, n := range r.Nodes {
		n.Version, n.Disk = "v0.6.0", &rowraftv1.Disk{FreeBytes: 100 << 30, ReserveBytes: 512 << 20}
		n.CertificateEnds = uint64(goldenTime.AddDate(0, 3, 0).Unix())
	}
	return r
}

// illness is well with one of everything that can be wrong.
func illness() *rowraftv1.StatusReply {
	r := leaving()
	r.ReplaceAfterNs = uint64(10 * time.Minute)
	r.Nodes[0].Version, r.Nodes[0].Disk = "v0.7.0", &rowraftv1.Disk{FreeBytes: 300 << 20, ReserveBytes: 512 << 20}
	r.Nodes[1].Disk = &rowraftv1.Disk{FreeBytes: 1000 << 20, ReserveBytes: 512 << 20}
	r.Nodes[0].CertificateEnds = uint64(goldenTime.Add(-time.Hour).Unix())
	r.Nodes[1].CertificateEnds = uint64(goldenTime.AddDate(0, 0, 13).Unix())
	r.Nodes[1].Node.Scheduler, r.Nodes[2].Node.Scheduler = true, true
	r.Nodes[1].State, r.Nodes[1].SinceHeartbeatNs = "suspect", 2_300e6
	r.Nodes[0].Replicas[0].DividedIndex = 1204000
	r.Nodes[0].Replicas[1].Fenced = "its rows at index 1204000 differ from those of the majority."
	r.Findings = []*rowraftv1.Problem{{
		Severity: rowraftv1.Severity_SEVERITY_WARNING, Kind: "policy-fails", Subject: "policy hourly",
		Text: "Checkpoint policy hourly has failed 3 time(s) in a row, none was ever made: no space.",
		Next: "see to what it says",
	}}
	return r
}

// TestGoldenOutputOfClusters: the verdict comes first and is the exit code, and each
// problem says what to do.
func TestGoldenOutputOfClusters(t *testing.T) {
	for _, tc := range []struct {
		name   string
		status *rowraftv1.StatusReply
		old    bool
		args   string
		code   int
		says   string
	}{
		{name: "cluster-healthy", status: well()},
		{name: "cluster-status", status: sample(), code: cli.ExitVerdict, says: "degraded: 3 problems"},
		{name: "cluster-status-wide", status: sample(), args: "-o wide", code: cli.ExitVerdict, says: "degraded"},
		{name: "cluster-status-json", status: sample(), args: "-o json", code: cli.ExitVerdict, says: "degraded"},
		{name: "cluster-status-yaml", status: sample(), args: "-o yaml", code: cli.ExitVerdict, says: "degraded"},
		{name: "cluster-of-before", status: sample(), old: true, code: cli.ExitVerdict, says: "degraded: 2 problems"},
		{name: "moving-cluster", status: moving(), code: cli.ExitVerdict, says: "degraded"},
		{name: "cluster-critical", status: illness(), code: cli.ExitVerdict, says: "critical"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			addr := start(t, &fakeCluster{status: tc.status, old: tc.old})
			got := rowraftCmd(t, append([]string{"cluster", "status", "--insecure", "--endpoints", addr},
				strings.Fields(tc.args)...)...)
			if got.code != tc.code || !strings.Contains(got.errout, tc.says) || (got.errout == "") != (tc.code == cli.ExitDone) {
				t.Errorf("exit code %d, stderr %q; want %d and %q", got.code, got.errout, tc.code, tc.says)
			}
			golden(t, tc.name, got.out)
		})
	}
}

// TestNotesAreNoProblem: work that runs, and a server that an operator has drained, leave a
// cluster healthy.
func TestNotesAreNoProblem(t *testing.T) {
	r := well()
	r.Nodes[0].Node.Intent = rowraftv1.NodeIntent_NODE_INTENT_DRAIN
	r.Moves = []*rowraftv1.MoveStatus{{Move: &rowraftv1.Move{Id: 4, Shard: 1,
		To: &rowraftv1.Replica{Id: "x", Node: "00000001-aaaa"}, Phase: rowraftv1.MovePhase_MOVE_PHASE_LEARN}}}
	got := rowraftCmd(t, "cluster", "status", "--insecure", "--endpoints", start(t, &fakeCluster{status: r}))
	if got.code != cli.ExitDone || !strings.HasPrefix(got.out, "healthy, 2 notes\n") ||
		!strings.Contains(got.out, "rowraft server undrain n1") {
		t.Errorf("%+v", got)
	}
}

// headless is a server of a cluster whose scheduler has no leader.
type headless struct {
	fakeCluster
	rowraftv1.UnimplementedReplicasServer
	refuses error
	ops     string // address of the ops port
}

func (h *headless) Hello(ctx context.Context, _ *rowraftv1.HelloRequest) (*rowraftv1.HelloReply, error) {
	if h.silent.Load() > 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &rowraftv1.HelloReply{ClusterId: "c-1", Addr: h.addr}, nil
}

func (h *headless) GetMap(context.Context, *rowraftv1.GetMapRequest) (*rowraftv1.GetMapReply, error) {
	return &rowraftv1.GetMapReply{Map: h.status.Map}, nil
}

func (h *headless) NodeStatus(context.Context, *rowraftv1.NodeStatusRequest) (*rowraftv1.NodeStatusReply, error) {
	return &rowraftv1.NodeStatusReply{Version: "v0.6.0", OpsAddr: h.ops, Replicas: h.status.Nodes[0].Replicas}, h.refuses
}

// TestClusterStatusWithoutAScheduler: the servers are asked one by one.
func TestClusterStatusWithoutAScheduler(t *testing.T) {
	status := func(addr string) outcome {
		g := remote.NewFlags("test", os.Exit)
		g.LeaderLimit, g.AskLimit = 100*time.Millisecond, time.Minute
		return runWith(t, g, "cluster", "status", "--insecure", "--endpoints", addr, "--timeout", "60s")
	}
	h := &headless{fakeCluster: fakeCluster{status: well()}}
	addr := startHeadless(t, h)
	gone := unusedAddr(t)
	for i, n := range h.status.Map.Nodes {
		if n.Addr = gone; i == 0 {
			n.Addr = addr
		}
	}
	got := status(addr)
	if got.code != cli.ExitVerdict || !strings.HasPrefix(got.out, "critical: ") {
		t.Fatalf("%+v", got)
	}
	for _, says := range []string{"The scheduler has no leader", "Server n2 at " + gone +
		" is down, with the 2 replicas it holds: it does not answer.", "Shard 1: no majority of the replicas answers",
		"Away: n2, n3.", "a server that returns with its data ends this", "runbook lose-a-majority"} {
		if !strings.Contains(got.out, says) {
			t.Errorf("it does not say %q:\n%s", says, got.out)
		}
	}
	h.silent.Store(1) // until LeaderLimit ends: it may only be slow, and is asked itself
	if got := status(addr); got.code != cli.ExitVerdict {
		t.Errorf("a server that says hello late: %+v", got)
	}
	h.silent.Store(0)
	h.refuses = rowraft.Errorf(rowraft.CodeDenied, "trainers may not")
	if got := status(addr); got.code != cli.ExitUnavailable || got.out != "" {
		t.Errorf("who may not ask: %+v", got)
	}
}

func startHeadless(t *testing.T, h *headless) string {
	l := rpctest.Listen(t)
	h.addr = l.Addr().String()
	rpctest.Serve(t, l, func(g *grpc.Server) {
		rowraftv1.RegisterClusterServer(g, h)
		rowraftv1.RegisterReplicasServer(g, h)
	})
	return h.addr
}

// unusedAddr returns an address without a listener: the kernel refuses connections.
func unusedAddr(t *testing.T) string {
	l := rpctest.Listen(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}
