package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/table"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/rpc/rpctest"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/diagnosis"
)

var update = flag.Bool("update", false, "write the golden files again")

// fakeCluster answers like the leader of a cluster of three.
type fakeCluster struct {
	rowraftv1.UnimplementedClusterServer
	addr      string
	leader    string // address it names; "" is itself
	status    *rowraftv1.StatusReply
	createErr []error // of the first calls
	creates   int
	changed   []string     // servers that were told what to do
	old       bool         // it knows of no findings
	silent    atomic.Int32 // so many calls of Hello get no answer
}

func (f *fakeCluster) Hello(ctx context.Context, _ *rowraftv1.HelloRequest) (*rowraftv1.HelloReply, error) {
	if f.silent.Add(-1) >= 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	leader := f.leader
	if leader == "" {
		leader = f.addr
	}
	return &rowraftv1.HelloReply{ClusterId: "c-1", Addr: f.addr, SchedulerLeader: leader}, nil
}

func (f *fakeCluster) Status(context.Context, *rowraftv1.StatusRequest) (*rowraftv1.StatusReply, error) {
	if f.status == nil {
		return nil, &rowraft.NotLeaderError{}
	}
	st := proto.CloneOf(f.status)
	if !f.old {
		st.Findings = append(st.Findings, diagnosis.Of(st, goldenTime)...)
		diagnosis.Sort(st.Findings)
	}
	return st, nil
}

// goldenTime is the present in golden files.
var goldenTime = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func (f *fakeCluster) CreateTable(_ context.Context,
	req *rowraftv1.CreateTableRequest) (*rowraftv1.CreateTableReply, error) {
	f.creates++
	if f.creates <= len(f.createErr) {
		return nil, f.createErr[f.creates-1]
	}
	req.Table.Id = 77
	return &rowraftv1.CreateTableReply{Table: req.Table, Created: true, MapVersion: 9}, nil
}

// MoveReplica answers that the move has been made already.
func (f *fakeCluster) MoveReplica(context.Context, *rowraftv1.MoveReplicaRequest) (*rowraftv1.MoveReplicaReply, error) {
	return &rowraftv1.MoveReplicaReply{Move: f.status.FinishedMoves[1]}, nil
}

func (f *fakeCluster) CancelMove(_ context.Context,
	req *rowraftv1.CancelMoveRequest) (*rowraftv1.CancelMoveReply, error) {
	f.status.Moves[0].Move.Phase, f.status.Moves[0].WaitingFor = rowraftv1.MovePhase_MOVE_PHASE_CANCEL, ""
	return &rowraftv1.CancelMoveReply{Move: f.status.Moves[0].Move}, nil
}

func start(t *testing.T, f *fakeCluster, more ...func(*grpc.Server)) string {
	t.Helper()
	l := rpctest.Listen(t)
	f.addr = l.Addr().String()
	rpctest.Serve(t, l, func(g *grpc.Server) {
		rowraftv1.RegisterClusterServer(g, f)
		for _, register := range more {
			register(g)
		}
	})
	return f.addr
}

func replica(shard uint32, id, role, leader string, applied uint64) *rowraftv1.ReplicaStatus {
	return &rowraftv1.ReplicaStatus{
		Shard: shard, ReplicaId: id, Role: role, Term: 7, CommitIndex: 1204331, AppliedIndex: applied, LeaderNode: leader,
		Rows: 5_100_000, MemoryBytes: 1395864371, LogBytes: 64 << 20,
		Tables: []*rowraftv1.TableStats{{Table: 11, Rows: 5_000_000, MemoryBytes: 1 << 30},
			{Table: 18446744073709551615, Rows: 100_000, MemoryBytes: 1 << 20}},
	}
}

// sample is a cluster of three servers, one of which has just died.
func sample() *rowraftv1.StatusReply {
	n := func(i string, scheduler bool) *rowraftv1.Node {
		return &rowraftv1.Node{Id: "0000000" + i + "-aaaa", Name: "n" + i, Addr: "10.0.0." + i + ":7070",
			PeerAddr: "10.0.0." + i + ":7071", Scheduler: scheduler}
	}
	id := func(i string) string { return "0000000" + i + "-aaaa" }
	shard := func(s uint32, a, b, c string) *rowraftv1.Shard {
		return &rowraftv1.Shard{Id: s, Replicas: []*rowraftv1.Replica{{Id: "repl-" + a, Node: id("1")},
			{Id: "repl-" + b, Node: id("2")}, {Id: "repl-" + c, Node: id("3")}}}
	}
	return &rowraftv1.StatusReply{
		ExpectedServers: 3,
		Map: &rowraftv1.Map{
			ClusterId: "048fe114-130c-4d26-b977-a06b494661e6", Version: 12,
			Slots:  rpc.SlotsToProto(clustermap.EvenSlots(2, rowraft.DefaultSlots)),
			Nodes:  []*rowraftv1.Node{n("1", true), n("2", true), n("3", false)},
			Shards: []*rowraftv1.Shard{shard(0, "a", "b", "c"), shard(1, "d", "e", "f")},
			Tables: []*rowraftv1.TableSchema{
				rpc.SchemaToProto(&rowraft.Schema{
					ID: 11, Name: "user_emb", Kind: rowraft.Sparse, Dim: 16,
					Initializer: rowraft.Initializer{Kind: rowraft.InitUniform, Seed: 1, A: -0.01, B: 0.01},
					Optimizer:   rowraft.Optimizer{Kind: rowraft.Adagrad, LR: 0.05, InitialAccumulator: 0.1, Epsilon: 1e-8},
				}),
				rpc.SchemaToProto(&rowraft.Schema{
					ID: 18446744073709551615, Name: "weights", Kind: rowraft.Dense, Dim: 64,
					Initializer: rowraft.Initializer{Kind: rowraft.InitNormal, Seed: 2, B: 0.02},
					Optimizer:   rowraft.Optimizer{Kind: rowraft.Adam, LR: 0.001, Epsilon: 1e-8, Beta1: 0.9, Beta2: 0.999},
				}),
			},
		},
		Nodes: []*rowraftv1.NodeStatus{
			{Node: n("1", true), State: "up", SinceHeartbeatNs: 120e6, MetadataLeader: true,
				Replicas: []*rowraftv1.ReplicaStatus{replica(0, "repl-a", "leader", id("1"), 1204331),
					replica(1, "repl-d", "follower", id("2"), 1200000)}},
			{Node: n("2", true), State: "up", SinceHeartbeatNs: 80e6,
				Replicas: []*rowraftv1.ReplicaStatus{replica(0, "repl-b", "follower", id("1"), 1204330),
					replica(1, "repl-e", "leader", id("2"), 1204331)}},
			{Node: n("3", false), State: "down", SinceHeartbeatNs: 31_500e6},
		},
		Problems: []string{"Server n3 at 10.0.0.3:7070 is down: its last heartbeat came 31.5s ago.",
			"Shard 0: the replica on n3 is unreachable."},
		Jobs: []*rowraftv1.JobStatus{{Job: "ctr", Workers: 2, Members: []string{"w0", ""}}},
	}
}

// moving is sample while replicas of both shards move to a fourth server.
func moving() *rowraftv1.StatusReply {
	r := sample()
	r.Map.Nodes = append(r.Map.Nodes, &rowraftv1.Node{Id: "00000004-aaaa", Name: "n4", Addr: "10.0.0.4:7070",
		PeerAddr: "10.0.0.4:7071"})
	r.Nodes = append(r.Nodes, &rowraftv1.NodeStatus{Node: r.Map.Nodes[3], State: "up", SinceHeartbeatNs: 90e6,
		Replicas: []*rowraftv1.ReplicaStatus{replica(0, "repl-g", "learner", "00000001-aaaa", 1200000)}})
	move := func(id uint64, shard uint32, from, fromReplica, to string, phase rowraftv1.MovePhase) *rowraftv1.Move {
		return &rowraftv1.Move{
			Id: id, Shard: shard, Phase: phase,
			From: &rowraftv1.Replica{Id: fromReplica, Node: from}, To: &rowraftv1.Replica{Id: to, Node: "00000004-aaaa"},
		}
	}
	r.Map.Shards[0].Learners = []*rowraftv1.Replica{{Id: "repl-g", Node: "00000004-aaaa"}}
	r.Map.Shards[1].Replicas = append(r.Map.Shards[1].Replicas, &rowraftv1.Replica{Id: "repl-h", Node: "00000004-aaaa"})
	r.Moves = []*rowraftv1.MoveStatus{
		{Move: move(7, 0, "00000003-aaaa", "repl-c", "repl-g", rowraftv1.MovePhase_MOVE_PHASE_LEARN),
			WaitingFor: "the learner is 4331 entries behind", LagEntries: 4331},
		{Move: move(6, 1, "00000003-aaaa", "repl-f", "repl-h", rowraftv1.MovePhase_MOVE_PHASE_REMOVE)},
	}
	r.FinishedMoves = []*rowraftv1.Move{move(5, 1, "00000002-aaaa", "repl-x", "repl-y",
		rowraftv1.MovePhase_MOVE_PHASE_CANCELLED), move(8, 1, "00000002-aaaa", "repl-e", "repl-i",
		rowraftv1.MovePhase_MOVE_PHASE_DONE)}
	return r
}

type outcome struct {
	code        int
	out, errout string
}

func rowraftCmd(t *testing.T, args ...string) outcome {
	t.Helper()
	return runWith(t, patient(), args...)
}

// runWith runs a command line with limits of its own.
func runWith(t *testing.T, g *remote.Flags, args ...string) outcome {
	t.Helper()
	var out, errout bytes.Buffer
	code := cli.Run(t.Context(), newRoot(g), args, &out, &errout)
	return outcome{code, out.String(), errout.String()}
}

// run executes a command line and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return cli.Run(ctx, newRoot(patient()), args, stdout, stderr)
}

// patient returns flags whose limits a suspended test keeps.
func patient() *remote.Flags {
	g := remote.NewFlags("test", os.Exit)
	g.LeaderLimit, g.CompletionLimit = time.Minute, time.Minute
	return g
}

// TestGoldenOutput compares what people and programs read with testdata/*.txt;
// `go test ./cmd/rowraft -run Golden -update` writes them again.
func TestGoldenOutput(t *testing.T) {
	addr := start(t, &fakeCluster{status: sample()})
	for name, args := range map[string][]string{
		"moving-shards":       {"shard", "list"},
		"moving-moves":        {"shard", "moves"},
		"moving-moves-wide":   {"shard", "moves", "-o", "wide"},
		"moving-moves-json":   {"shard", "moves", "-o", "json"},
		"moving-move":         {"shard", "move", "1", "--from", "n2", "--to", "n4"},
		"moving-move-json":    {"shard", "move", "1", "--from", "n2", "--to", "n4", "-o", "json"},
		"moving-cancel":       {"shard", "cancel-move", "0"},
		"no-moves":            {"shard", "moves"},
		"shard-list":          {"shard", "list"},
		"shard-list-wide":     {"shard", "list", "-o", "wide"},
		"shard-list-table":    {"shard", "list", "--table", "weights"},
		"shard-list-json":     {"shard", "list", "-o", "json"},
		"table-list":          {"table", "list"},
		"table-list-wide":     {"table", "list", "-o", "wide"},
		"table-list-json":     {"table", "list", "-o", "json"},
		"table-describe":      {"table", "describe", "user_emb"},
		"table-describe-json": {"table", "describe", "weights", "-o", "json"},
		"table-create": {"table", "create", "item", "--dim", "8", "--optimizer", "sgd", "--lr", "1", "--init",
			"zeros"},
		"table-create-json": {"table", "create", "item", "--dim", "8", "--optimizer", "adam", "--lr", "0.001", "-o",
			"json"},
		"table-create-ftrl-json": {"table", "create", "clicks", "--dim", "1", "--optimizer", "ftrl", "--lr", "0.1", "--l1",
			"1", "--bound", "5", "--init", "zeros", "-o", "json"},
		"table-forecast":      {"table", "forecast", "--dim", "16", "--rows", "1e9", "--shards", "64", "--servers", "12"},
		"table-forecast-json": {"table", "forecast", "user_emb", "--rows", "20e6", "-o", "json"},
		"table-create-policies-json": {"table", "create", "ads", "--dim", "8", "--storage", "bfloat16", "--admit", "count:3",
			"--expire", "168h",
			"--capacity", "1000000", "--evict", "lfu", "--sum-pushes", "-o", "json"},
		"table-create-tiered-json": {"table", "create", "old", "--dim", "8", "--store", "tiered", "--memory",
			"8GiB", "-o", "json"},
	} {
		t.Run(name, func(t *testing.T) {
			to := addr
			if strings.HasPrefix(name, "moving-") {
				to = start(t, &fakeCluster{status: moving()})
			}
			got := rowraftCmd(t, append(args, "--insecure", "--endpoints", to)...)
			if got.code != cli.ExitDone || got.errout != "" {
				t.Fatalf("exit code %d, stderr %q", got.code, got.errout)
			}
			golden(t, name, got.out)
		})
	}
}

func TestWrongUsage(t *testing.T) {
	config := filepath.Join(t.TempDir(), "server.yaml")
	write := func(text string) {
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name string
		yaml string
		args []string
		says []string
	}{
		{"an unknown command", "", []string{"clustr"}, []string{`unknown command "clustr"`, `did you mean "cluster"`}},
		{"an unknown subcommand", "", []string{"table", "lsit"}, []string{`"rowraft table"`, `did you mean "list"`}},
		{"an unknown flag", "", []string{"cluster", "status", "--endpoint", "x"},
			[]string{"--endpoint", `did you mean "--endpoints"`}},
		{"an unknown flag far from any", "", []string{"version", "--zzzzzzzz"},
			[]string{"unknown flag: --zzzzzzzz", "--help"}},
		{"an unknown output format", "", []string{"version", "-o", "jsn"}, []string{`"jsn"`, `did you mean "json"`}},
		{"an argument too many", "", []string{"cluster", "status", "now"}, []string{`unexpected argument "now"`}},
		{"an argument too few", "", []string{"table", "describe"}, []string{"name of the table"}},
		{"neither certificates nor --insecure", "", []string{"cluster", "status"}, []string{"--insecure", "--cacert"}},
		{"a table without a dimension", "", []string{"table", "create", "t", "--insecure"}, []string{"dim 0"}},
		{"a forecast of nothing", "", []string{"table", "forecast", "--dim", "4"}, []string{"--rows 1e9"}},
		{"a forecast of half a row", "", []string{"table", "forecast", "--dim", "4", "--rows", "1.5"},
			[]string{"whole number"}},
		{"a forecast of another dim", "", []string{"table", "forecast", "t", "--dim", "4", "--rows", "15"},
			[]string{"t's own"}},
		{"a forecast for too few servers", "", []string{"table", "forecast", "--dim", "4", "--rows", "15", "--servers", "2"},
			[]string{"more replicas than servers"}},
		{"an unknown storage", "", []string{"table", "create", "t", "--dim", "4", "--insecure", "--storage", "bfloat"},
			[]string{"--storage", "did you mean", "bfloat16"}},
		{"an unknown admission", "", []string{"table", "create", "t", "--dim", "4", "--insecure", "--admit", "often"},
			[]string{"--admit", "count:3"}},
		{"half a second", "", []string{"table", "create", "t", "--dim", "4", "--insecure", "--expire", "500ms"},
			[]string{"--expire", "whole seconds"}},
		{"a capacity and no eviction", "", []string{"table", "create", "t", "--dim", "4", "--insecure", "--capacity",
			"100000"}, []string{"--evict lru"}},
		{"an eviction and no capacity", "", []string{"table", "create", "t", "--dim", "4", "--insecure", "--evict", "lru"},
			[]string{"--capacity"}},
		{"a capacity too small", "", []string{"table", "create", "t", "--dim", "4", "--insecure", "--capacity", "100",
			"--evict", "lru"}, []string{"4096"}},
		{"tiered without a size", "", []string{"table", "create", "t", "--dim", "4", "--insecure", "--store", "tiered"},
			[]string{"--memory", "8GiB"}},
		{"a size without a tier", "", []string{"table", "create", "t", "--dim", "4", "--insecure", "--memory", "8GiB"},
			[]string{"--store tiered"}},
		{"no size", "", []string{"table", "create", "t", "--dim", "4", "--insecure", "--store", "tiered", "--memory", "much"},
			[]string{"--memory", "8GiB"}},
		{"an unknown store", "", []string{"table", "create", "t", "--dim", "4", "--insecure", "--store", "tierd"},
			[]string{"--store", "did you mean", "tiered"}},
		{"too small a size", "", []string{"table", "create", "t", "--dim", "4", "--insecure", "--store", "tiered",
			"--memory", "1KB"}, []string{"1024"}},
		{"a flag of another optimizer", "", []string{"table", "create", "t", "--dim", "4", "--optimizer", "sgd", "--beta1",
			"0.5"}, []string{"--beta1", "--optimizer sgd"}},
		{"a constant of ftrl", "", []string{"table", "create", "t", "--dim", "4", "--l1", "0.5"},
			[]string{"--l1", "--optimizer adagrad"}},
		{"a learning rate that does nothing", "", []string{"table", "create", "t", "--dim", "4", "--optimizer", "add", "--lr",
			"0.5"}, []string{"--lr", "--optimizer add"}},
		{"a decay that ftrl has not", "", []string{"table", "create", "t", "--dim", "4", "--optimizer", "ftrl",
			"--weight-decay", "0.5"}, []string{"--weight-decay", "--optimizer ftrl"}},
		{"a momentum of 1", "", []string{"table", "create", "t", "--dim", "4", "--optimizer", "momentum", "--momentum", "1"},
			[]string{"momentum", "[0, 1)"}},
		{"an unknown optimizer", "", []string{"table", "create", "t", "--dim", "4", "--optimizer", "adagard"},
			[]string{`did you mean "adagrad"`}},
		{"a server without a directory", "", []string{"server", "--insecure"}, []string{"--data-dir"}},
		{"an unknown log level", "", []string{"server", "--data-dir", "d", "--log-level", "loud"}, []string{"loud"}},
		{"an unknown key", "name: n1\ndata-dri: /x\n", []string{"server", "--config", config},
			[]string{"line 2", `"data-dri"`, `did you mean "data-dir"`}},
		{"a key twice", "name: a\nname: b\n", []string{"server", "--config", config}, []string{"name"}},
		{"a value of the wrong type", "servers: many\n", []string{"server", "--config", config}, []string{"line 1", "many"}},
		{"a list where none belongs", "name: {a: b}\n", []string{"server", "--config", config},
			[]string{"line 1", "plain value"}},
		{"no shard to transfer", "", []string{"shard", "transfer-leader"}, []string{"SHARD", "rowraft shard list"}},
		{"a shard that is no number", "", []string{"shard", "transfer-leader", "first"},
			[]string{`"first"`, "rowraft shard list"}},
		{"no shard to compare", "", []string{"shard", "digest"}, []string{"SHARD", "--all"}},
		{"all shards and one", "", []string{"shard", "digest", "1", "--all"}, []string{"--all"}},
		{"a move from nowhere", "", []string{"shard", "move", "1", "--to", "n4"}, []string{"--from"}},
		{"a missing file", "", []string{"server", "--config", config + ".no"}, []string{config + ".no"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			write(tc.yaml)
			got := rowraftCmd(t, tc.args...)
			if got.code != cli.ExitUsage || got.out != "" {
				t.Errorf("exit code %d with stdout %q, want %d and none", got.code, got.out, cli.ExitUsage)
			}
			for _, s := range tc.says {
				if !strings.Contains(got.errout, s) {
					t.Errorf("stderr %q does not say %q", got.errout, s)
				}
			}
		})
	}
}

func TestErrorsAreJSONWhenAskedFor(t *testing.T) {
	addr := start(t, &fakeCluster{status: sample(), createErr: []error{rowraft.Errorf(rowraft.CodeTableExists,
		"table t exists with another shape")}})
	for _, tc := range []struct {
		args []string
		exit int
		code string
	}{
		{[]string{"table", "create", "t", "--dim", "4"}, cli.ExitFailed, "TableExists"},
		{[]string{"table", "describe", "user"}, cli.ExitFailed, "TableNotFound"},
		{[]string{"table", "list", "--flag-that-is-not"}, cli.ExitUsage, "InvalidArgument"},
	} {
		got := rowraftCmd(t, append([]string{"-o", "json", "--insecure", "--endpoints", addr}, tc.args...)...)
		var e cli.ErrorJSON
		if err := json.Unmarshal([]byte(got.errout), &e); err != nil {
			t.Fatalf("%v: stderr %q: %v", tc.args, got.errout, err)
		}
		if got.code != tc.exit || e.Error.Code != tc.code || e.Error.Message == "" || e.Error.Retryable {
			t.Errorf("%v: exit %d, %+v; want exit %d, code %s", tc.args, got.code, e.Error, tc.exit, tc.code)
		}
	}
}

func TestTheLeaderIsFoundThroughAnyServer(t *testing.T) {
	leader := start(t, &fakeCluster{status: sample()})
	other := start(t, &fakeCluster{leader: leader})
	gone := unusedAddr(t)
	t.Setenv("ROWRAFT_ENDPOINTS", gone+","+other)
	t.Setenv("ROWRAFT_INSECURE", "true")
	if got := rowraftCmd(t, "table", "list"); got.code != cli.ExitDone || !strings.Contains(got.out, "user_emb") {
		t.Errorf("through a follower: %+v", got)
	}
	got := rowraftCmd(t, "table", "list", "--endpoints", gone)
	if got.code != cli.ExitUnavailable || !strings.Contains(got.errout, gone) {
		t.Errorf("no server: exit code %d, want %d; stderr %q", got.code, cli.ExitUnavailable, got.errout)
	}
	// A cluster without a leader is waited for until the timeout.
	if got := rowraftCmd(t, "table", "list", "--endpoints", start(t, &fakeCluster{}), "--timeout",
		"100ms"); got.code != cli.ExitUnavailable {
		t.Errorf("no leader: %+v, want exit code %d", got, cli.ExitUnavailable)
	}
}

func TestTableCreateIsRepeatedOnlyWhereThatIsSafe(t *testing.T) {
	create := []string{"table", "create", "t", "--dim", "4", "--insecure", "--endpoints"}
	lost := rowraft.Errorf(rowraft.CodeLeadershipLost, "outcome unknown")
	f := &fakeCluster{createErr: []error{lost}}
	got := rowraftCmd(t, append(create, start(t, f))...)
	if got.code != cli.ExitUnavailable || f.creates != 1 || !strings.Contains(got.errout, "--if-not-exists") {
		t.Errorf("unknown outcome: %d calls, %+v", f.creates, got)
	}
	f = &fakeCluster{createErr: []error{lost}}
	if got := rowraftCmd(t, append(create, start(t, f), "--if-not-exists")...); got.code != cli.ExitDone ||
		f.creates != 2 {
		t.Errorf("unknown outcome with --if-not-exists: %d calls, %+v", f.creates, got)
	}
	f = &fakeCluster{createErr: []error{rowraft.Errorf(rowraft.CodeStarting, "no shards yet")}}
	if got := rowraftCmd(t, append(create, start(t, f))...); got.code != cli.ExitDone || f.creates != 2 {
		t.Errorf("a cluster that starts: %d calls, %+v", f.creates, got)
	}
}

func TestServerStartsBecomesReadyAndStops(t *testing.T) {
	dir := t.TempDir()
	ready := filepath.Join(dir, "ready.json")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var errout bytes.Buffer
	done := make(chan int, 1)
	args := []string{
		"server", "--insecure", "--with-scheduler", "--data-dir", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0",
		"--peer-listen", "127.0.0.1:0",
		"--ready-file", ready, "--name", "solo", "--shards", "1", "--disk-stall-limit", "1m", "--disk-reserve-bytes", "-1",
	}
	go func() { done <- run(ctx, args, &errout, &errout) }()
	info := waitReady(t, ready, done, &errout)
	if info.Name != "solo" || info.ClusterID == "" || info.ServerID == "" || info.PID != os.Getpid() {
		t.Errorf("ready file: %+v", info)
	}
	create := rowraftCmd(t, "table", "create", "t", "--dim", "4", "--insecure", "--endpoints", info.Addr)
	if create.code != cli.ExitDone {
		t.Errorf("table create: %+v", create)
	}
	checkRows(t, info.Addr)
	checkTableDelete(t, info.Addr)
	second := rowraftCmd(t, "server", "--insecure", "--with-scheduler", "--data-dir", filepath.Join(dir, "data"),
		"--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0")
	if second.code != cli.ExitFailed || !strings.Contains(second.errout, "in use by the process with pid") {
		t.Errorf("a second server in one data directory: %+v", second)
	}
	cancel()
	if code := <-done; code != cli.ExitDone {
		t.Errorf("exit code %d after a stop; log:\n%s", code, errout.String())
	}
	identity := filepath.Join(dir, "data", "IDENTITY")
	raw, err := os.ReadFile(identity)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 1
	if err := os.WriteFile(identity, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if damaged := rowraftCmd(t, args...); damaged.code != cli.ExitSpoiled ||
		!strings.Contains(damaged.errout, "start the server with an empty data directory") {
		t.Errorf("a server on damaged data: %+v, want exit code %d", damaged, cli.ExitSpoiled)
	}
}

// checkTableDelete deletes table t, which others have forgotten by then.
func checkTableDelete(t *testing.T, addr string) {
	t.Helper()
	at := []string{"--insecure", "--endpoints", addr}
	// Standard input is empty here.
	if got := rowraftCmd(t, append([]string{"table", "delete", "t"}, at...)...); got.code != cli.ExitRefused ||
		!strings.Contains(got.errout, "nothing was changed") {
		t.Errorf("table delete without an answer: %+v", got)
	}
	c, err := client.Dial(t.Context(), client.Options{Endpoints: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	users, err := c.Table(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	if got := rowraftCmd(t, append([]string{"table", "delete", "t", "--yes"}, at...)...); got.code != cli.ExitDone ||
		!strings.Contains(got.out, "table t deleted") {
		t.Errorf("table delete: %+v", got)
	}
	if _, err := users.Assign(t.Context(), []rowraft.Key{1},
		make([]float32, 4)); rowraft.CodeOf(err) != rowraft.CodeTableNotFound {
		t.Errorf("an assign to the table that was deleted: %v, want TableNotFound", err)
	}
	if err := c.DropTable(t.Context(), users); err != nil {
		t.Errorf("deleted again: %v", err)
	}
	for _, args := range [][]string{{"table", "create", "t", "--dim", "9"}, {"row", "get", "t", "7", "-o", "json"}} {
		got := rowraftCmd(t, append(args, at...)...)
		if got.code != cli.ExitDone || args[0] == "row" && !strings.Contains(got.out, `"exists": false`) {
			t.Errorf("%v after the delete: %+v", args, got)
		}
	}
}

// checkRows makes two rows of table t, shows them, and deletes one.
func checkRows(t *testing.T, addr string) {
	t.Helper()
	c, err := client.Dial(t.Context(), client.Options{Endpoints: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	users, err := c.Table(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := users.Assign(t.Context(), []rowraft.Key{7, 1 << 63}, []float32{1, 2, 3, 4, 5, 6, 7, 8}); err != nil {
		t.Fatal(err)
	}
	rows := func() (r table.Rows) {
		t.Helper()
		got := rowraftCmd(t, "row", "get", "t", "9223372036854775808", "0x7", "-o", "json", "--insecure", "--endpoints", addr)
		if err := json.Unmarshal([]byte(got.out), &r); err != nil || got.code != cli.ExitDone || len(r.Rows) != 2 ||
			r.Rows[0].Key != "7" || r.Rows[1].Key != "9223372036854775808" {
			t.Fatalf("row get: %+v, %v", got, err)
		}
		return r
	}
	if r := rows().Rows; !r[0].Exists || !r[1].Exists || !slices.Equal(r[1].Weights, []float32{5, 6, 7, 8}) {
		t.Errorf("rows %+v", r)
	}
	if got := rowraftCmd(t, "row", "delete", "t", "0x8000000000000000", "99", "--insecure", "--endpoints",
		addr); got.code != cli.ExitDone || !strings.Contains(got.out, "2 keys") {
		t.Errorf("row delete: %+v", got)
	}
	if r := rows().Rows; !r[0].Exists || r[1].Exists || slices.Equal(r[1].Weights, []float32{5, 6, 7, 8}) {
		t.Errorf("after the delete: rows %+v", r)
	}
	checkRowModes(t, addr)
	if got := rowraftCmd(t, "row", "delete", "t", "x", "--insecure", "--endpoints", addr); got.code != cli.ExitUsage ||
		!strings.Contains(got.errout, "0x in hexadecimal") {
		t.Errorf("a key that is none: %+v", got)
	}
	if got := rowraftCmd(t, "row", "delete", "t", "--insecure", "--endpoints", addr); got.code != cli.ExitUsage {
		t.Errorf("no key: %+v", got)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestOutputThatCannotBeWritten(t *testing.T) {
	addr := start(t, &fakeCluster{status: sample()})
	for _, format := range []string{"table", "json", "yaml"} {
		var stderr strings.Builder
		args := []string{"shard", "list", "--insecure", "--endpoints", addr, "-o", format}
		if code := run(t.Context(), args, fullDisk{}, &stderr); code != cli.ExitFailed ||
			!strings.Contains(stderr.String(), "no space left") {
			t.Errorf("-o %s: code %d, %q, want %d and the reason", format, code, stderr.String(), cli.ExitFailed)
		}
	}
}
