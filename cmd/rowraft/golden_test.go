package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// described is illness with what leaders know of members, and a proof.
func described() *rowraftv1.StatusReply {
	r := leaving()
	lead := r.Nodes[0].Replicas[0]
	lead.Members = []*rowraftv1.MemberStatus{
		{ReplicaId: "repl-a", Node: "00000001-aaaa", Voter: true, CaughtUp: true},
		{ReplicaId: "repl-b", Node: "00000002-aaaa", Voter: true, MatchIndex: 1204331, CaughtUp: true},
		{ReplicaId: "repl-c", Node: "00000003-aaaa", Voter: true, MatchIndex: 1100000, LagEntries: 104331},
		{ReplicaId: "repl-g", Node: "00000004-aaaa", MatchIndex: 1200000, LagEntries: 4331},
	}
	lead.ProvedIndex, r.Nodes[1].Replicas[0].ProvedIndex = 1204300, 1204300
	r.Nodes[0].Replicas[1].Fenced, r.Nodes[0].Replicas[1].Role = "its rows at index 1204000 differ from those of the "+
		"majority.", "fenced"
	return r
}

// policies are two checkpoint policies, one of which fails.
type policies struct {
	rowraftv1.UnimplementedCheckpointsServer
}

func (policies) ListPolicies(context.Context, *rowraftv1.ListPoliciesRequest) (*rowraftv1.ListPoliciesReply, error) {
	at := func(h int) uint64 { return uint64(goldenTime.Add(time.Duration(h) * time.Hour).UnixNano()) }
	return &rowraftv1.ListPoliciesReply{Policies: []*rowraftv1.PolicyStatus{
		{
			Policy: &rowraftv1.CheckpointPolicy{Name: "hourly", Destination: "/mnt/checkpoints", EveryNs: 3600e9, Keep: 3,
				KeepWithinNs: 7200e9, FullEvery: 4},
			Record: &rowraftv1.PolicyRecord{SetNs: at(-9), BegunNs: at(-1),
				Made: []*rowraftv1.PolicyCheckpoint{{Name: "hourly-1", BegunNs: at(-2)},
					{Name: "hourly-2", BegunNs: at(-1), Delta: true}}},
			State: "waiting", NextNs: at(0),
		},
		{
			Policy: &rowraftv1.CheckpointPolicy{Name: "nightly", Destination: "s3://models/ctr", EveryNs: 86400e9, Keep: 7,
				Job: "ctr", SkipAbsent: true, Owner: "ctr-trainer"},
			Record: &rowraftv1.PolicyRecord{SetNs: at(-99), BegunNs: at(-3), Failures: 2, Error: "no space",
				RetentionError: "access denied"},
			State: "failing", NextNs: at(1),
		},
	}}, nil
}

// tokens are an unused one and an expired one.
type tokens struct {
	rowraftv1.UnimplementedCertificatesServer
}

func (tokens) ListTokens(context.Context, *rowraftv1.ListTokensRequest) (*rowraftv1.ListTokensReply, error) {
	at := func(year int) uint64 { return uint64(time.Date(year, 1, 2, 3, 4, 5, 0, time.UTC).UnixNano()) }
	return &rowraftv1.ListTokensReply{Tokens: []*rowraftv1.JoinToken{
		{Id: "00112233445566aa", Role: "server", Uses: 3, CreatedNs: at(2020), ExpiresNs: at(2200), ValidNs: 86400e9,
			CreatedBy: "admin ann"},
		{Id: "00112233445566bb", Role: "trainer", Name: "ctr", Tables: []string{"user", "item_*"}, Uses: 1,
			CreatedNs: at(2020), ExpiresNs: at(2021), ValidNs: 86400e9, CreatedBy: "admin ann"},
	}}, nil
}

// TestGoldenOutputOfDescriptions is for what has no fake cluster of its own elsewhere.
func TestGoldenOutputOfDescriptions(t *testing.T) {
	addr := start(t, &fakeCluster{status: described()}, func(g *grpc.Server) {
		rowraftv1.RegisterCheckpointsServer(g, policies{})
		rowraftv1.RegisterCertificatesServer(g, tokens{})
	})
	at := []string{"--insecure", "--endpoints", addr}
	for name, line := range map[string]string{
		"shard-describe":                  "shard describe 0",
		"shard-describe-wide":             "shard describe 1 -o wide",
		"shard-describe-json":             "shard describe 0 -o json",
		"shard-describe-yaml":             "shard describe 1 -o yaml",
		"server-list-yaml":                "server list -o yaml",
		"operation-list-yaml":             "operation list -o yaml",
		"table-list-yaml":                 "table list -o yaml",
		"token-list":                      "token list",
		"token-list-wide":                 "token list -o wide",
		"token-list-json":                 "token list -o json",
		"checkpoint-policy-list":          "checkpoint policy list",
		"checkpoint-policy-list-wide":     "checkpoint policy list -o wide",
		"checkpoint-policy-list-json":     "checkpoint policy list -o json",
		"checkpoint-policy-describe":      "checkpoint policy describe hourly",
		"checkpoint-policy-describe-json": "checkpoint policy describe nightly -o json",
	} {
		t.Run(name, func(t *testing.T) {
			got := rowraftCmd(t, append(strings.Fields(line), at...)...)
			if got.code != cli.ExitDone || got.errout != "" {
				t.Fatalf("exit code %d, stderr %q", got.code, got.errout)
			}
			golden(t, name, got.out)
		})
	}
	if got := rowraftCmd(t, append([]string{"shard", "describe", "7"}, at...)...); got.code != cli.ExitUsage ||
		!strings.Contains(got.errout, "the cluster has 2 shards") {
		t.Errorf("a shard that is not there: %+v", got)
	}
}

// TestAServerThatIsDownDoesNothing: what it last reported, for example that it leads, does not show as of now.
func TestAServerThatIsDownDoesNothing(t *testing.T) {
	r := described()
	r.Nodes[1].State, r.Nodes[1].Node.Name = "down", "n2"
	at := []string{"--insecure", "--endpoints", start(t, &fakeCluster{status: r})}
	got := rowraftCmd(t, append([]string{"shard", "describe", "1"}, at...)...)
	if strings.Contains(got.out, "leader  ") || !strings.Contains(got.out, "n2      down  - ") ||
		!strings.Contains(got.out, "HOLDS      unknown") {
		t.Errorf("shard describe: %+v", got)
	}
	got = rowraftCmd(t, append([]string{"shard", "describe", "1", "-o", "json"}, at...)...)
	if strings.Contains(got.out, `"role": "leader"`) {
		t.Errorf("shard describe -o json: %+v", got)
	}
	for _, word := range []string{"serving", "scheduling", "stopping"} {
		r.Nodes[1].Node.NoShards, r.Nodes[1].Stopping = word == "scheduling", word == "stopping"
		for _, args := range []string{"server list", "server status n2", "server status n2 -o json"} {
			got := rowraftCmd(t, append(strings.Fields(args), at...)...)
			for line := range strings.Lines(got.out) {
				if (args != "server list" || strings.HasPrefix(line, "n2")) &&
					(strings.Contains(line, word) || strings.Contains(line, "leader  ")) {
					t.Errorf("%s: %s", args, line)
				}
			}
		}
	}
}

// TestGoldenListOfCheckpoints lists a directory.
func TestGoldenListOfCheckpoints(t *testing.T) {
	dir := t.TempDir()
	for name, from := range map[string]string{"d": "manifest-delta.txt", "f": "manifest.txt"} {
		b, err := os.ReadFile(filepath.Join("../../checkpoint/testdata", from))
		if err == nil {
			err = os.Mkdir(filepath.Join(dir, name), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name, "MANIFEST"), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, format := range map[string]string{"checkpoint-list": "table", "checkpoint-list-wide": "wide",
		"checkpoint-list-json": "json"} {
		got := rowraftCmd(t, "checkpoint", "list", dir, "-o", format)
		if got.code != cli.ExitDone || got.errout != "" {
			t.Fatalf("exit code %d, stderr %q", got.code, got.errout)
		}
		golden(t, name, strings.ReplaceAll(got.out, dir, "DIR"))
	}
}

// TestWhatPeopleReadIsGolden: whatever lists, describes or tells a state has its output
// kept, as people and as programs read it.
func TestWhatPeopleReadIsGolden(t *testing.T) {
	everyCommand(newRoot(&remote.Flags{}), func(cmd *cobra.Command) {
		if !slices.Contains([]string{"list", "describe", "status"}, cmd.Name()) {
			return
		}
		name := strings.ReplaceAll(strings.TrimPrefix(cmd.CommandPath(), "rowraft "), " ", "-")
		for _, suffix := range []string{"", "-json"} {
			if _, err := os.Stat(filepath.Join("testdata", name+suffix+".txt")); err != nil {
				t.Errorf("%s: no golden file: %v", cmd.CommandPath(), err)
			}
		}
	})
}
