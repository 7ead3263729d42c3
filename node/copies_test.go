package node

import (
	"slices"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// without returns the index of a server without a replica of shard 0.
func (c *testCluster) without(cl *client.Client) int {
	c.t.Helper()
	for i, n := range c.nodes {
		held := false
		for _, r := range cl.Map().Shards[0].Replicas {
			at, _ := cl.Map().Node(r.Node)
			held = held || at.Addr == n.addr
		}
		if !held {
			return i
		}
	}
	c.t.Fatal("every server has a replica")
	return 0
}

// TestAnyServerAnswers: a server without a replica answers bounded reads, from copies while they are new enough. A row
// has every push that was acknowledged at the age of the reply, and those up to the index that the read names.
func TestAnyServerAnswers(t *testing.T) {
	c, ctx := startCluster(t, 4, 1), testutil.Context(t)
	cl := c.dial()
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	reads, at := c.boundedReads(table), c.without(cl)
	var acked []time.Time // of push i+1
	copied := 0
	for push := range 60 {
		if _, err := table.Push(ctx, []rowraft.Key{1}, []float32{-1, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		acked = append(acked, time.Now())
		v, reply, called := reads.patient(ctx, at, 10*time.Second, 0, 0)
		if !reply.WithoutReplica || reply.AgeNs == 0 || reply.AgeNs > uint64(10*time.Second) {
			t.Fatalf("the server answers %+v", reply)
		}
		if reply.Fetched == 0 {
			copied++
		}
		from, want := called.Add(-time.Duration(reply.AgeNs)), 0
		for _, at := range acked {
			if at.Before(from) {
				want++
			}
		}
		if int(v) < want || int(v) > push+1 {
			t.Errorf("with an age of %v the row has %v pushes of %d, want %d at least", time.Duration(reply.AgeNs), v, push+1,
				want)
		}
		if push%20 != 19 {
			continue
		}
		index := uint64(cl.Position().Shards[0])
		if v, reply, _ = reads.patient(ctx, at, time.Minute, 0, index); int(v) != push+1 || reply.AppliedIndex < index {
			t.Fatalf("after push %d at index %d: %v, %v", push+1, index, v, reply)
		}
		// The largest lag and the presence of rows are not known of copies.
		if v, reply, _ = reads.patient(ctx, at, time.Minute, 1, index); int(v) != push+1 || reply.Fetched != 1 {
			t.Errorf("with a bound of the lag: %v, %v", v, reply)
		}
	}
	if copied < 10 {
		t.Errorf("%d of 60 reads came from copies", copied)
	}
	seg := wire.Segment{Table: table.Schema().ID, N: 1, Dim: 4, DType: rowraft.Float32, Flags: wire.FlagNoValues}
	if _, err := reads.stubs[at].Pull(ctx, &rowraftv1.PullRequest{MapVersion: anyMapVersion,
		Payload: segment(seg, []uint64{1}, nil)}); rowraft.CodeOf(rpc.FromStatus(err)) != rowraft.CodeNotLeader {
		t.Errorf("a leader read: %v, want NotLeader", err)
	}
	if _, _, err := reads.read(ctx, at, &rowraftv1.PullRequest{}); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("a bounded read without a bound: %v, want InvalidArgument", err)
	}
	if n := c.nodes[at].metric(t, `rowraft_copies_rows_total{source="copy"}`); n < float64(copied) {
		t.Errorf("%v rows from copies by the metric, want %d or more", n, copied)
	}
}

// TestCopiesEndWithTheirBound: without a majority no replica proves its age, so a copy is served until it is too old.
func TestCopiesEndWithTheirBound(t *testing.T) {
	c, ctx := startCluster(t, 4, 1), testutil.Context(t)
	cl := c.dial()
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Push(ctx, []rowraft.Key{1}, []float32{-1, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	reads, at := c.boundedReads(table), c.without(cl)
	const maxAge = 3 * time.Second
	reads.patient(ctx, at, maxAge, 0, 0)
	for i := range c.nodes {
		if i != at {
			c.stopNode(i)
		}
	}
	gone, served := time.Now(), 0
	for {
		late := time.Since(gone) > maxAge
		v, reply, err := reads.read(ctx, at, &rowraftv1.PullRequest{MaxAgeNs: uint64(maxAge)})
		if err != nil {
			break
		}
		if served++; late || v != 1 || reply.AgeNs > uint64(maxAge) {
			t.Fatalf("%v after the replicas went: %v pushes, age %d ns", time.Since(gone), v, reply.AgeNs)
		}
	}
	if served == 0 {
		t.Skip("the servers took longer to stop than the bound")
	}
	if v, _, err := reads.read(ctx, at, &rowraftv1.PullRequest{MaxAgeNs: uint64(time.Hour)}); err != nil || v != 1 {
		t.Errorf("with a bound of an hour: %v, %v", v, err)
	}
}

// TestCopiesEndWithTheirTable: a table that is dropped is not found, and one that is made again begins empty, whatever
// age a read allows.
func TestCopiesEndWithTheirTable(t *testing.T) {
	c, ctx := startCluster(t, 4, 1), testutil.Context(t)
	cl := c.dial()
	at := c.without(cl)
	for range 2 {
		table, err := cl.CreateTable(ctx, counterSchema("user"), false)
		if err != nil {
			t.Fatal(err)
		}
		reads := c.boundedReads(table)
		// The server and the replicas may learn of the table a moment later.
		testutil.Eventually(t, "the table is empty", func() bool {
			v, _, err := reads.read(ctx, at, &rowraftv1.PullRequest{MaxAgeNs: uint64(time.Hour)})
			if err == nil && v != 0 {
				t.Fatalf("a new table has a row of %v pushes", v)
			}
			return err == nil
		})
		if _, err := table.Push(ctx, []rowraft.Key{1}, []float32{-1, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		index := uint64(cl.Position().Shards[0])
		if v, _, _ := reads.patient(ctx, at, time.Hour, 0, index); v != 1 {
			t.Errorf("the row has %v pushes, want 1", v)
		}
		if err := cl.DropTable(ctx, table); err != nil {
			t.Fatal(err)
		}
		testutil.Eventually(t, "the dropped table is not found", func() bool {
			_, _, err := reads.read(ctx, at, &rowraftv1.PullRequest{MaxAgeNs: uint64(time.Hour)})
			return rowraft.CodeOf(err) == rowraft.CodeTableNotFound
		})
	}
}

// TestCopiesEndWithARestore: once a server knows of a restore, it has no rows from before it.
func TestCopiesEndWithARestore(t *testing.T) {
	c, ctx := proofCluster{testCluster: startCluster(t, 4, 1), ctx: testutil.Context(t)}, testutil.Context(t)
	cl := c.dial()
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	push := func() {
		if _, err := table.Push(ctx, []rowraft.Key{1}, []float32{-1, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
	}
	reads, at, dir := c.boundedReads(table), c.without(cl), t.TempDir()
	push()
	name, err := c.create(dir)
	if err != nil {
		t.Fatal(err)
	}
	push()
	if v, reply, _ := reads.patient(ctx, at, time.Hour, 0, uint64(cl.Position().Shards[0])); v != 2 ||
		reply.TableEpoch != 1 {
		t.Fatalf("before the restore: %v, %v", v, reply)
	}
	if err := c.checkpoint(func(s rowraftv1.CheckpointsClient) error {
		return drain(s.RestoreCheckpoint(ctx, &rowraftv1.RestoreCheckpointRequest{Destination: dir, Name: name,
			Replace: true}))
	}); err != nil {
		t.Fatal(err)
	}
	// A read that knows of the restore gets no older row, also from a server that does not know of it.
	ask := func(epoch uint64) (float32, *rowraftv1.PullReply, error) {
		return reads.read(ctx, at, &rowraftv1.PullRequest{MaxAgeNs: uint64(time.Hour), TableEpoch: epoch})
	}
	var v float32
	var reply *rowraftv1.PullReply
	testutil.Eventually(t, "a read of the new epoch", func() bool {
		v, reply, err = ask(2)
		return err == nil
	})
	if v != 1 || reply.TableEpoch != 2 {
		t.Errorf("after the restore: %v, %v, want 1 push of epoch 2", v, reply)
	}
	if v, reply, err = ask(0); err != nil || v != 1 || reply.TableEpoch != 2 || reply.Fetched != 0 {
		t.Errorf("again: %v, %v, %v, want a copy of the new epoch", v, reply, err)
	}
	if _, _, err := ask(1); rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
		t.Errorf("a read of the old epoch: %v, want SessionExpired", err)
	}
}

// TestCopiesWithANewMap: a server that gets a replica answers from it, and one whose replica has left answers from
// copies, both within the bound.
func TestCopiesWithANewMap(t *testing.T) {
	c, ctx := startCluster(t, 4, 1), testutil.Context(t)
	cl := c.dial()
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	reads, to := c.boundedReads(table), c.without(cl)
	from := (to + 1) % 4
	pushes := 0
	check := func(at int, without bool) {
		t.Helper()
		if _, err := table.Push(ctx, []rowraft.Key{1}, []float32{-1, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		pushes++
		index := uint64(cl.Position().Shards[0])
		testutil.Eventually(t, "the server follows the map", func() bool {
			v, reply, _ := reads.patient(ctx, at, time.Hour, 0, index)
			if int(v) != pushes {
				t.Fatalf("server %d: %v pushes of %d", at, v, pushes)
			}
			return reply.WithoutReplica == without
		})
	}
	check(to, true)
	check(from, false)
	m, err := c.startMove(ctx, 0, c.nodes[from].cfg.Name, c.nodes[to].cfg.Name)
	if err != nil {
		t.Fatal(err)
	}
	if m = c.ended(ctx, m.Id); m.Phase != rowraftv1.MovePhase_MOVE_PHASE_DONE {
		t.Fatalf("the move ended as %v", m)
	}
	check(to, false)
	check(from, true)
	check(from, true)
}

// TestCopiesAreOfTheCallersTables: the answering server checks the tables of the caller, and only servers may ask for
// rows without that.
func TestCopiesAreOfTheCallersTables(t *testing.T) {
	c := startSecureCluster(t, 4, nil)
	ctx := testutil.Context(t)
	cl := c.dialAs(certs.Admin, "root")
	table, err := cl.CreateTable(ctx, counterSchema("mine"), false)
	if err != nil {
		t.Fatal(err)
	}
	at := c.nodes[c.without(cl)].addr
	seg := wire.Segment{Table: table.Schema().ID, N: 1, Dim: 4, DType: rowraft.Float32, Flags: wire.FlagNoValues}
	ask := func() *rowraftv1.PullRequest {
		return &rowraftv1.PullRequest{MapVersion: anyMapVersion, Mode: rowraftv1.ReadMode_READ_MODE_BOUNDED,
			MaxAgeNs: uint64(time.Hour), Payload: segment(seg, []uint64{1}, nil)}
	}
	mine := c.connectAs(at, certs.Reader, "reader", "mine")
	testutil.Eventually(t, "the reader of the table gets its rows", func() bool {
		_, err := rowraftv1.NewTableClient(mine).Pull(ctx, ask())
		return err == nil
	})
	others := c.connectAs(at, certs.Reader, "other", "theirs")
	if _, err := rowraftv1.NewTableClient(others).Pull(ctx, ask()); rowraft.CodeOf(
		rpc.FromStatus(err)) != rowraft.CodeDenied {
		t.Errorf("a reader of another table: %v, want Denied", err)
	}
	if _, err := rowraftv1.NewReplicasClient(mine).CopyRows(ctx, ask()); rowraft.CodeOf(
		rpc.FromStatus(err)) != rowraft.CodeDenied {
		t.Errorf("CopyRows by a reader: %v, want Denied", err)
	}
	if roles := rpc.RolesOf(rowraftv1.Replicas_CopyRows_FullMethodName); !slices.Equal(roles,
		[]certs.Role{certs.Server}) {
		t.Errorf("CopyRows is for %v, want servers", roles)
	}
}

// TestCopiesHaveNoVersions: a server without a replica answers a read that knows versions with all
// rows, from its copies.
func TestCopiesHaveNoVersions(t *testing.T) {
	c, ctx := startCluster(t, 4, 1), testutil.Context(t)
	cl := c.dial()
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Push(ctx, []rowraft.Key{1}, []float32{-1, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	ask := wire.Segment{Table: table.Schema().ID, N: 1, Dim: 4, DType: rowraft.Float32,
		Flags: wire.FlagNoValues | wire.FlagVersions | wire.FlagKnown}
	at := connect(t, c.nodes[c.without(cl)].addr, nil)
	testutil.Eventually(t, "an answer from copies", func() bool {
		payload := make([]byte, ask.Size())
		body := ask.Put(payload)
		body.Keys[0], body.Known[0] = 1, 1 // the version of the row
		reply, err := rowraftv1.NewTableClient(at).Pull(ctx, &rowraftv1.PullRequest{MapVersion: anyMapVersion,
			Mode: rowraftv1.ReadMode_READ_MODE_BOUNDED, MaxAgeNs: uint64(time.Hour), KnownEpoch: 1, Payload: payload,
			MinIndex: uint64(cl.Position().Shards[0])})
		if err != nil {
			return false
		}
		seg, body, _, err := wire.ParseSegment(reply.Payload)
		if err != nil || seg.Flags != wire.FlagNoKeys || seg.Unchanged != 0 || len(body.Values) != 16 {
			t.Fatalf("%+v, %v: want the whole row, without a version", seg, err)
		}
		return reply.WithoutReplica && reply.Fetched == 0
	})
}

// TestLeadersSendHotRows: while there are bounded reads at a server without a replica, the leader sends it the rows
// that are accessed most, so that their copies never become too old and have new pushes before a read asks.
func TestLeadersSendHotRows(t *testing.T) {
	c, ctx := startCluster(t, 4, 1), testutil.Context(t)
	cl := c.dial()
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	reads, at := c.boundedReads(table), c.without(cl)
	const maxAge = 2 * time.Second
	reads.patient(ctx, at, maxAge, 0, 0) // begins to ask
	pushes := 0
	sent := func() float64 { return c.nodes[at].metric(t, `rowraft_copies_rows_total{source="sent"}`) }
	testutil.Eventually(t, "the leader sends the row", func() bool {
		for range 50 { // hot: many accesses to row 1 at the leader
			if _, err := table.Push(ctx, []rowraft.Key{1}, []float32{-1, 0, 0, 0}); err != nil {
				t.Fatal(err)
			}
			pushes++
		}
		return sent() > 0
	})
	// A copy arrives with all pushes, without a read.
	fetched := func() float64 { return c.nodes[at].metric(t, `rowraft_copies_rows_total{source="fetched"}`) }
	was := fetched()
	testutil.Eventually(t, "a copy has all pushes", func() bool {
		v, reply, err := reads.read(ctx, at, &rowraftv1.PullRequest{MaxAgeNs: uint64(maxAge)})
		if err != nil {
			t.Fatal(err)
		}
		return int(v) == pushes && reply.Fetched == 0
	})
	if now := fetched(); now > was+1 {
		t.Errorf("%v rows were fetched by reads", now-was)
	}
}
