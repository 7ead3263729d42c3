package main

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/rpc/rpctest"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// fakeLeader leads all shards of a cluster of one address and tells what it has heard of
// the replicas of each.
type fakeLeader struct {
	rowraftv1.UnimplementedClusterServer
	rowraftv1.UnimplementedReplicasServer
	addr   string
	proofs []*rowraftv1.ProveReply
	silent atomic.Int32  // so many calls of GetMap get no answer
	still  time.Duration // it stands still for so long before it takes a connection
}

func (f *fakeLeader) GetMap(ctx context.Context, _ *rowraftv1.GetMapRequest) (*rowraftv1.GetMapReply, error) {
	if f.silent.Add(-1) >= 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	m := &rowraftv1.Map{ClusterId: "c-1", Version: 1}
	for _, n := range []string{"1", "2", "3"} {
		m.Nodes = append(m.Nodes, &rowraftv1.Node{Id: n, Name: "n" + n, Addr: f.addr})
	}
	for i := range f.proofs {
		m.Shards = append(m.Shards, &rowraftv1.Shard{Id: uint32(i), Replicas: []*rowraftv1.Replica{{Id: "a", Node: "1"}}})
	}
	return &rowraftv1.GetMapReply{Map: m}, nil
}

func (f *fakeLeader) Prove(_ context.Context, req *rowraftv1.ProveRequest) (*rowraftv1.ProveReply, error) {
	return f.proofs[req.Shard], nil
}

func startLeader(t *testing.T, proofs ...*rowraftv1.ProveReply) string {
	t.Helper()
	return (&fakeLeader{proofs: proofs}).start(t)
}

func (f *fakeLeader) start(t *testing.T) string {
	t.Helper()
	l := rpctest.Listen(t)
	f.addr = l.Addr().String()
	g := grpc.NewServer(rpc.ServerOptions(nil)...)
	rowraftv1.RegisterClusterServer(g, f)
	rowraftv1.RegisterReplicasServer(g, f)
	done := make(chan error, 1)
	go func() {
		//tidy:allow sleep it stands still
		time.Sleep(f.still)
		done <- g.Serve(l)
	}()
	t.Cleanup(func() { g.Stop(); <-done })
	return f.addr
}

func noted(node, digest string, rows uint64) *rowraftv1.ProvedReplica {
	return &rowraftv1.ProvedReplica{ReplicaId: "r" + node, Node: node, Voter: true, Leader: node == "1", Noted: true,
		Rows: rows, Digest: []byte(strings.Repeat(digest, 16))}
}

// TestDigestTellsDifferences: every way in which replicas are not all known to be
// equal is shown, and ends with the exit code of a verdict.
func TestDigestTellsDifferences(t *testing.T) {
	agreed := func(rs ...*rowraftv1.ProvedReplica) *rowraftv1.ProveReply {
		return &rowraftv1.ProveReply{MarkIndex: 1234, Verdict: rowraftv1.DigestVerdict_DIGEST_VERDICT_AGREED, Rows: 5,
			Digest: []byte(strings.Repeat("\x0a", 16)), Replicas: rs}
	}
	same := agreed(noted("1", "\x0a", 5), noted("2", "\x0a", 5), noted("3", "\x0a", 5))
	fenced := &rowraftv1.ProvedReplica{ReplicaId: "r3", Node: "3", Voter: true, Fenced: "it is fenced"}
	silent := &rowraftv1.ProvedReplica{ReplicaId: "r3", Node: "3", Voter: true, Error: "no answer"}
	learner := &rowraftv1.ProvedReplica{ReplicaId: "r4", Node: "3"}
	divided := &rowraftv1.ProveReply{MarkIndex: 1234, Verdict: rowraftv1.DigestVerdict_DIGEST_VERDICT_DIVIDED,
		Replicas: []*rowraftv1.ProvedReplica{noted("1", "\x0a", 5), noted("2", "\x0b", 5)}}
	for _, tc := range []struct {
		name  string
		reply *rowraftv1.ProveReply
		code  int
		lines []string
	}{
		{"equal", same, cli.ExitDone, []string{
			"0  1,234  n1      leader       5  0a0a0a0a0a0a0a0a  yes",
			"0  1,234  n3      follower     5  0a0a0a0a0a0a0a0a  yes"}},
		{"another digest", agreed(noted("1", "\x0a", 5), noted("2", "\x0a", 5), noted("3", "\x0b", 5)), cli.ExitVerdict,
			[]string{"n3      follower     5  0b0b0b0b0b0b0b0b  NO"}},
		{"another number of rows", agreed(noted("1", "\x0a", 5), noted("2", "\x0a", 5), noted("3", "\x0a", 6)),
			cli.ExitVerdict, []string{"follower     6", "NO"}},
		{"fenced", agreed(noted("1", "\x0a", 5), noted("2", "\x0a", 5), fenced), cli.ExitVerdict,
			[]string{"n3      fenced       -  -", "unknown", "n3: it is fenced"}},
		{"silent", agreed(noted("1", "\x0a", 5), noted("2", "\x0a", 5), silent), cli.ExitVerdict,
			[]string{"unknown", "n3: no answer"}},
		{"a learner without a note", agreed(noted("1", "\x0a", 5), noted("2", "\x0a", 5), learner), cli.ExitVerdict,
			[]string{"learner", "unknown"}},
		{"divided", divided, cli.ExitVerdict, []string{"n1      leader       5  0a0a0a0a0a0a0a0a  divided",
			"n2      follower     5  0b0b0b0b0b0b0b0b  divided"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			addr := startLeader(t, tc.reply, same)
			got := rowraftCmd(t, "shard", "digest", "--all", "--insecure", "--endpoints", addr)
			if got.code != tc.code || (got.errout == "") != (tc.code == cli.ExitDone) {
				t.Errorf("exit code %d, stderr %q; want %d", got.code, got.errout, tc.code)
			}
			for _, line := range append(tc.lines, "1  1,234  n1") {
				if !strings.Contains(got.out, line) {
					t.Errorf("%q is not in\n%s", line, got.out)
				}
			}
			got = rowraftCmd(t, "shard", "digest", "0", "-o", "json", "--insecure", "--endpoints", addr)
			if equal := strings.Contains(got.out,
				"{\n  \"schema\": \"rowraft/v1\",\n  \"equal\": true"); equal != (tc.code == cli.ExitDone) || got.code != tc.code {
				t.Errorf("exit code %d and\n%s\nwant equal %v", got.code, got.out, tc.code == cli.ExitDone)
			}
		})
	}
	t.Run("a shard that does not exist", func(t *testing.T) {
		got := rowraftCmd(t, "shard", "digest", "7", "--insecure", "--endpoints", startLeader(t, same))
		if got.code != cli.ExitUsage || !strings.Contains(got.errout, "shard 7 does not exist") {
			t.Errorf("exit code %d, %q", got.code, got.errout)
		}
	})
}

// TestDigestWaitsForAMap: a server that says nothing for a moment is asked again, and an
// address without a listener is reported at once.
func TestDigestWaitsForAMap(t *testing.T) {
	digest := func(addr, timeout string) outcome {
		g := patient()
		g.AskLimit = 200 * time.Millisecond
		return runWith(t, g, "shard", "digest", "--all", "--insecure", "--endpoints", addr, "--timeout", timeout)
	}
	f := &fakeLeader{proofs: []*rowraftv1.ProveReply{{Verdict: rowraftv1.DigestVerdict_DIGEST_VERDICT_AGREED}}}
	f.silent.Store(1)
	if got := digest(f.start(t), "60s"); got.code != cli.ExitDone {
		t.Errorf("%+v", got)
	}
	f.still = rpc.ConnectTimeout + 500*time.Millisecond
	if got := digest(f.start(t), "60s"); got.code != cli.ExitDone {
		t.Errorf("of a server that takes no connection for %v: %+v", f.still, got)
	}
	if got := digest(unusedAddr(t), "24h"); got.code != cli.ExitUnavailable {
		t.Errorf("without a server: %+v, want exit code %d", got, cli.ExitUnavailable)
	}
}
