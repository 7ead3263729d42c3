package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/rpc/rpctest"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// TestExitCodes: each exit code of rowraft's help is what a command ends with.
func TestExitCodes(t *testing.T) {
	addr := start(t, &fakeCluster{status: sample()})
	help := rowraftCmd(t, "--help").out
	for _, tc := range []struct {
		code int
		args []string
	}{
		{cli.ExitDone, []string{"table", "list"}},
		{cli.ExitFailed, []string{"table", "describe", "nothing"}},
		{cli.ExitUsage, []string{"table", "describe"}},
		{cli.ExitVerdict, []string{"cluster", "status"}},
		{cli.ExitUnavailable, []string{"table", "list"}},
		{cli.ExitRefused, []string{"server", "drain", "n2"}},
	} {
		to := addr
		if tc.code == cli.ExitUnavailable {
			to = unusedAddr(t)
		}
		if got := rowraftCmd(t, append(tc.args, "--insecure", "--endpoints", to)...); got.code != tc.code {
			t.Errorf("rowraft %s: %+v, want exit code %d", strings.Join(tc.args, " "), got, tc.code)
		}
		if !strings.Contains(help, fmt.Sprintf("\n  %3d  ", tc.code)) {
			t.Errorf("rowraft --help does not explain exit code %d:\n%s", tc.code, help)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if code := cli.ExitCode(ctx, rowraft.Errorf(rowraft.CodeNoLeader,
		"stopped while it waited")); code != cli.ExitInterrupted || !strings.Contains(help, "\n  130  ") {
		t.Errorf("interrupted: exit code %d, want %d, and in\n%s", code, cli.ExitInterrupted, help)
	}
}

// TestAServerThatStandsStillForAMomentIsWaitedFor: one that accepts a call and says nothing is
// no reason to give up before --timeout.
func TestAServerThatStandsStillForAMomentIsWaitedFor(t *testing.T) {
	f := &fakeCluster{status: sample()}
	f.silent.Store(1)
	if got := rowraftCmd(t, "table", "list", "--insecure", "--endpoints", start(t, f)); got.code != cli.ExitDone {
		t.Errorf("%+v", got)
	}
	f.silent.Store(1 << 20)
	got := rowraftCmd(t, "table", "list", "--insecure", "--timeout", "1s", "--endpoints", f.addr)
	if got.code != cli.ExitUnavailable || !strings.Contains(got.errout, "no server answers: "+f.addr) ||
		!strings.Contains(got.errout, "is it running") {
		t.Errorf("one that never goes on: %+v", got)
	}
}

// TestAServerThatDoesNotAcceptForAMomentIsWaitedFor: its kernel does, and nothing comes.
func TestAServerThatDoesNotAcceptForAMomentIsWaitedFor(t *testing.T) {
	l := rpctest.Listen(t)
	f := &fakeCluster{status: sample(), addr: l.Addr().String()}
	g := grpc.NewServer(rpc.ServerOptions(nil)...)
	rowraftv1.RegisterClusterServer(g, f)
	served := make(chan error, 1)
	time.AfterFunc(2500*time.Millisecond, func() { served <- g.Serve(l) })
	if got := rowraftCmd(t, "table", "list", "--insecure", "--timeout", "60s", "--endpoints",
		f.addr); got.code != cli.ExitDone {
		t.Errorf("%+v", got)
	}
	g.Stop()
	<-served
}

// brokenCalls ends its calls as gRPC does when a connection breaks.
type brokenCalls struct {
	rowraftv1.UnimplementedCheckpointsServer
	rowraftv1.UnimplementedSweepsServer
}

var errBroken = status.Error(codes.Unavailable, "keepalive ping failed to receive ACK within timeout")

func (brokenCalls) CreateCheckpoint(*rowraftv1.CreateCheckpointRequest,
	grpc.ServerStreamingServer[rowraftv1.CreateCheckpointReply]) error {
	return errBroken
}

func (brokenCalls) RestoreCheckpoint(*rowraftv1.RestoreCheckpointRequest,
	grpc.ServerStreamingServer[rowraftv1.RestoreCheckpointReply]) error {
	return errBroken
}

func (brokenCalls) RunPolicy(context.Context, *rowraftv1.RunPolicyRequest) (*rowraftv1.RunPolicyReply, error) {
	return nil, errBroken
}

func (brokenCalls) ShrinkTable(_ *rowraftv1.ShrinkTableRequest,
	s grpc.ServerStreamingServer[rowraftv1.ShrinkTableReply]) error {
	return errors.Join(s.Send(&rowraftv1.ShrinkTableReply{Slots: 1}), errBroken)
}

// TestABrokenConnectionIsNoAnswer: scripts try again after exit code 4, and what to know of that is said.
func TestABrokenConnectionIsNoAnswer(t *testing.T) {
	addr := start(t, &fakeCluster{}, func(s *grpc.Server) {
		rowraftv1.RegisterCheckpointsServer(s, brokenCalls{})
		rowraftv1.RegisterSweepsServer(s, brokenCalls{})
	})
	gone := start(t, &fakeCluster{leader: unusedAddr(t)})
	for says, args := range map[string][]string{
		"the server that led the checkpoint is gone": {"checkpoint", "create", t.TempDir()},
		"the server that led the restore is gone":    {"checkpoint", "restore", t.TempDir() + "/a"},
		"run the same command":                       {"table", "shrink", "t", "--norm-below", "1"},
		"policy run-now":                             {"checkpoint", "policy", "run-now", "p"},
	} {
		got := rowraftCmd(t, append(args, "--insecure", "--endpoints", addr)...)
		if got.code != cli.ExitUnavailable || !strings.Contains(got.errout, "keepalive ping failed") ||
			!strings.Contains(got.errout, says) {
			t.Errorf("rowraft %s: %+v, want exit code %d and %q", strings.Join(args, " "), got, cli.ExitUnavailable, says)
		}
		if got := rowraftCmd(t, append(args, "--insecure", "--endpoints", gone)...); got.code != cli.ExitUnavailable {
			t.Errorf("rowraft %s of a leader that has just ended: %+v, want exit code %d", strings.Join(args, " "), got,
				cli.ExitUnavailable)
		}
	}
}

// TestTheUnitDoesNotRetryInVain: the unit of the manual restarts a server without end, except after errors that a
// restart does not cure.
func TestTheUnitDoesNotRetryInVain(t *testing.T) {
	page, err := os.ReadFile("../../docs/ops/install.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nStartLimitIntervalSec=0\n", "\nRestart=on-failure\n",
		fmt.Sprintf("\nRestartPreventExitStatus=%d %d\n", cli.ExitUsage, cli.ExitSpoiled)} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the unit lacks %q", want)
		}
	}
}
