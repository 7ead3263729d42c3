package node

import (
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// TestDropTable: every replica drops the rows, a client that still has the table's id is refused, and
// entries that the scheduler logged for another epoch, such as the one before a restore, have no effect.
func TestDropTable(t *testing.T) {
	c := startCluster(t, 3, 2)
	ctx, cl := testutil.Context(t), c.dial()
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	other, err := cl.CreateTable(ctx, counterSchema("other"), false)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]rowraft.Key, 100)
	for i := range keys {
		keys[i] = rowraft.Key(i)
	}
	values := make([]float32, len(keys)*table.Dim())
	ack, err := cl.Push(ctx, client.Segment{Table: table, Keys: keys, Values: values},
		client.Segment{Table: other, Keys: keys, Values: values})
	if err != nil {
		t.Fatal(err)
	}
	id := table.Schema().ID
	admins := make([]rowraftv1.ReplicasClient, len(c.nodes))
	for i, n := range c.nodes {
		conn, err := bareDial(n.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		awaitConn(t, conn)
		admins[i] = rowraftv1.NewReplicasClient(conn)
	}
	// tables returns the tables of a replica that has applied the entry of ack.
	tables := func(admin rowraftv1.ReplicasClient, shard rowraft.ShardID) (ids []uint64) {
		t.Helper()
		if _, err := admin.Digest(ctx, &rowraftv1.DigestRequest{Shard: uint32(shard),
			MinIndex: uint64(ack.Index[shard])}); err != nil {
			t.Fatal(err)
		}
		status, err := admin.NodeStatus(ctx, &rowraftv1.NodeStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range status.GetReplicas() {
			for _, s := range r.GetTables() {
				if r.GetShard() == uint32(shard) {
					ids = append(ids, s.GetTable())
				}
			}
		}
		return ids
	}
	for _, sh := range cl.Map().Shards {
		// The leader may change meanwhile.
		for i, code := 0, rowraft.CodeNotLeader; code != rowraft.CodeSessionExpired; i++ {
			_, err = admins[i%len(admins)].DropShardTable(ctx, &rowraftv1.DropShardTableRequest{Shard: uint32(sh.ID),
				Table: uint64(id), TableEpoch: 2})
			if code = rowraft.CodeOf(rpc.FromStatus(err)); code != rowraft.CodeSessionExpired && !code.Retryable() ||
				ctx.Err() != nil {
				t.Fatalf("shard %d: a drop of epoch 2: %v, want SessionExpired from its leader", sh.ID, err)
			}
		}
		for i, admin := range admins {
			if got := tables(admin, sh.ID); !slices.Contains(got, uint64(id)) {
				t.Fatalf("shard %d on server %d: tables %v, without the one that was not dropped", sh.ID, i, got)
			}
		}
	}
	if err := cl.DropTable(ctx, table); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Push(ctx, keys, values); rowraft.CodeOf(err) != rowraft.CodeTableNotFound {
		t.Errorf("push: %v, want TableNotFound", err)
	}
	if err := table.Pull(ctx, keys, values); rowraft.CodeOf(err) != rowraft.CodeTableNotFound {
		t.Errorf("pull: %v, want TableNotFound", err)
	}
	if ack, err = other.Push(ctx, keys, values); err != nil {
		t.Fatal(err)
	}
	for i, admin := range admins {
		for _, sh := range cl.Map().Shards {
			if got := tables(admin, sh.ID); !slices.Equal(got, []uint64{uint64(other.Schema().ID)}) {
				t.Errorf("shard %d on server %d has tables %v, want the other one alone", sh.ID, i, got)
			}
		}
	}
}
