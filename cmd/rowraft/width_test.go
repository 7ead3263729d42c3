package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// large is described with the names, ids and numbers of a large cluster.
func large() *rowraftv1.StatusReply {
	r, random := proto.CloneOf(described()), rand.New(rand.NewPCG(1, 1)) // the same ids in each run
	ids := map[string]string{}
	uuid := func(id string) string {
		if ids[id] == "" {
			h := fmt.Sprintf("%016x%016x", random.Uint64(), random.Uint64())
			ids[id] = strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
		}
		return ids[id]
	}
	var all []*rowraftv1.Replica
	for _, s := range r.Map.Shards {
		all = append(append(all, s.Replicas...), s.Learners...)
	}
	for _, rep := range all {
		rep.Id, rep.Node = uuid(rep.Id), uuid(rep.Node)
	}
	for i, n := range r.Nodes {
		for _, n := range []*rowraftv1.Node{n.Node, r.Map.Nodes[i]} {
			if len(n.Id) < 36 {
				n.Id = uuid(n.Id)
			}
			n.Addr = fmt.Sprintf("rowraft-%d.rowraft.ml-prod.lan:7070", i)
			n.PeerAddr, n.Labels = n.Addr, "zone=eu-central-1a,rack=r12"
		}
		n.SinceHeartbeatNs, n.InStateNs = 312_500e6, 99*3600e9+59*60e9
		for _, rep := range n.Replicas {
			rep.ReplicaId, rep.LeaderNode, rep.Term = uuid(rep.ReplicaId), uuid(rep.LeaderNode), 1234
			rep.Rows, rep.MemoryBytes = 12_345_678_901, 987<<30
			rep.CommitIndex, rep.AppliedIndex = rep.CommitIndex+123e6, rep.AppliedIndex+123e6
			for _, table := range rep.Tables {
				table.Rows, table.MemoryBytes = 12_345_678_901, 987<<30
			}
			for _, m := range rep.Members {
				m.ReplicaId, m.Node = uuid(m.ReplicaId), uuid(m.Node)
			}
		}
	}
	r.Nodes[3].Node.Intent, r.Map.Nodes[3].Intent = rowraftv1.NodeIntent_NODE_INTENT_DECOMMISSION,
		rowraftv1.NodeIntent_NODE_INTENT_DECOMMISSION
	for _, m := range r.Moves {
		m.Move.From.Node, m.Move.To.Node = uuid(m.Move.From.Node), uuid(m.Move.To.Node)
		m.Move.Id, m.LagEntries = m.Move.Id+1000, 1e9
	}
	for _, o := range r.Operations {
		o.Node, o.Id = uuid(o.Node), o.Id+1000
	}
	for i, table := range r.Map.Tables {
		table.Name, table.Dim = fmt.Sprintf("recommendations.%d.user_embedding", i), 1024
	}
	return r
}

// largePolicies are those of policies, with the names and errors of a large cluster.
type largePolicies struct{ policies }

func (largePolicies) ListPolicies(ctx context.Context, q *rowraftv1.ListPoliciesRequest) (*rowraftv1.ListPoliciesReply,
	error) {
	r, err := policies{}.ListPolicies(ctx, q)
	for _, p := range r.GetPolicies() {
		p.Policy.Name = "ads-ctr-" + p.Policy.Name
		p.Policy.Destination = "s3://ml-prod-eu-central-1/checkpoints/recommendations"
		p.Record.Failures, p.Record.Error = 12, "checkpoint "+p.Policy.Name+"-20261123T060000Z: write shard 17: "+
			"disk of server rowraft-4 has 104857600 bytes free, 538968064 are kept in reserve"
		for _, made := range p.Record.Made {
			made.Name = p.Policy.Name + "-20261123T060000Z"
		}
	}
	return r, err
}

// TestTablesFitATerminal: no line of a table has more than 80 characters, with realistic data, unless -o wide asks
// for it.
func TestTablesFitATerminal(t *testing.T) {
	j := runOfTwo()
	j.Job = "ads-ctr-daily"
	j.Members[0].Member.Worker, j.Members[1].Member.Worker = "trainer-a100-007", "trainer-a100-008"
	beat := j.Members[0].Beat
	beat.Step, beat.StepsPerSecond, beat.ExamplesPerSecond = 12_345_678, 1234.5, 4_160_000
	addr := start(t, &fakeCluster{status: large()}, func(g *grpc.Server) {
		rowraftv1.RegisterCheckpointsServer(g, largePolicies{})
		rowraftv1.RegisterCertificatesServer(g, tokens{})
		rowraftv1.RegisterJobsServer(g, &fakeJobs{points: [][]*rowraftv1.JobInfo{{j, inStep()}}})
	})
	proved := noted("1", "d", 12_345_678_901)
	leader := startLeader(t, &rowraftv1.ProveReply{MarkIndex: 123_456_789, Rows: proved.Rows, Digest: proved.Digest,
		Verdict:  rowraftv1.DigestVerdict_DIGEST_VERDICT_AGREED,
		Replicas: []*rowraftv1.ProvedReplica{proved, noted("2", "e", 1)}})
	b, err := os.ReadFile("../../checkpoint/testdata/manifest.txt")
	dir := t.TempDir()
	t.Chdir(dir)
	if err == nil {
		err = os.MkdirAll("checkpoints/nightly-20261123T060000Z", 0o755)
	}
	if err == nil {
		err = os.WriteFile("checkpoints/nightly-20261123T060000Z/MANIFEST", b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := rowraftCmd(t, "cert", "lab", "--dir", "certs"); got.code != cli.ExitDone {
		t.Fatalf("%+v", got)
	}
	tested := []string{
		"cert inspect certs/ca.pem certs/server.pem certs/client.pem", "checkpoint list " + dir + "/checkpoints",
		"checkpoint policy describe ads-ctr-nightly", "checkpoint policy list", "cluster status",
		"job describe ads-ctr-daily", "job list", "server list", "server status n3",
		"operation list", "operation list --all", "shard describe 0",
		"shard describe 1", "shard digest --all", "shard list", "shard moves", "table list", "token list",
		"table describe recommendations.0.user_embedding",
	}
	for _, line := range tested {
		args := strings.Fields(line)
		switch {
		case args[0] == "cert" || args[0] == "checkpoint" && args[1] != "policy":
		case line == "shard digest --all":
			args = append(args, "--insecure", "--endpoints", leader)
		default:
			args = append(args, "--insecure", "--endpoints", addr)
		}
		checkWidth(t, line, rowraftCmd(t, args...))
	}
	tested = append(tested, liveTables(t)...)
	everyCommand(newRoot(&remote.Flags{}), func(cmd *cobra.Command) {
		path := strings.TrimPrefix(cmd.CommandPath(), "rowraft ")
		if slices.Contains([]string{"list", "describe", "status", "verify", "dump", "get"}, cmd.Name()) &&
			!slices.ContainsFunc(tested, func(line string) bool { return strings.HasPrefix(line+" ", path+" ") }) {
			t.Errorf("%s is not tested", path)
		}
	})
}

// liveTables checks the tables of commands that need real rows and logs, and returns the commands.
func liveTables(t *testing.T) (tested []string) {
	const name, data = "recommendations.0.user_embedding", "var/lib/rowraft"
	dest := t.TempDir()
	t.Run("live", func(t *testing.T) {
		c := startLive(t, 1, "--data-dir", data)
		c.must("table", "create", name, "--dim", "64")
		keys := []string{"1", "18446744073709551614"}
		c.must(slices.Concat([]string{"row", "set", name}, keys, []string{"--weights",
			strings.TrimSuffix(strings.Repeat("-0.00012345678,", 64), ",")})...)
		for _, line := range []string{
			"row get " + name + " 2 " + strings.Join(keys, " "),
			"checkpoint create " + dest + " --name nightly-20261123T060000Z",
		} {
			checkWidth(t, line, c.run(strings.Fields(line)...))
			tested = append(tested, line)
		}
		verify := "checkpoint verify " + dest + "/nightly-20261123T060000Z"
		checkWidth(t, verify, rowraftCmd(t, strings.Fields(verify)...))
		tested = append(tested, verify)
	})
	for _, line := range []string{"log verify " + data, "log dump " + data} { // the server has stopped
		checkWidth(t, line, rowraftCmd(t, strings.Fields(line)...))
		tested = append(tested, line)
	}
	return tested
}

// checkWidth wants tables in the output of a command, none of them with a longer line than a terminal has.
func checkWidth(t *testing.T, command string, got outcome) {
	t.Helper()
	lines := tableLines(got.out)
	if strings.HasPrefix(command, "checkpoint policy describe ") && got.out != "" {
		lines = strings.Split(got.out, "\n") // a table without names of columns
	}
	if len(lines) == 0 {
		t.Errorf("%s: exit code %d, no table in\n%s%s", command, got.code, got.out, got.errout)
	}
	for _, l := range lines {
		if n := utf8.RuneCountInString(l); n > cli.TableWidth {
			t.Errorf("%s: a line of %d characters:\n%s", command, n, strings.Join(lines, "\n"))
			return
		}
	}
}

// tableLines returns the lines of the tables of an output: each begins with names of columns in capitals, and ends with
// an empty line or a sentence.
func tableLines(out string) (lines []string) {
	in := false
	for l := range strings.Lines(out) {
		l = strings.TrimSuffix(l, "\n")
		words, upper := strings.Fields(l), strings.ReplaceAll(l, "(max)", "")
		switch {
		// What follows on a table of checkpoints, or of the tables of one, is a sentence.
		case len(words) == 0 || strings.Contains(l, " is broken: ") || strings.HasPrefix(l, "checkpoint "):
			in = false
		case len(words) > 2 && upper == strings.ToUpper(upper) && !strings.ContainsAny(l, "0123456789"):
			in = true
		}
		if in {
			lines = append(lines, l)
		}
	}
	return lines
}
