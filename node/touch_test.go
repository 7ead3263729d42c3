package node

import (
	"fmt"
	"testing"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// TestATableThatComesWhileACallWaits: a call may begin before the owner of a table is known, because the
// replica is behind or the table is new. A read checks again before it replies, and nothing is logged for a
// table that the newest state does not have.
func TestATableThatComesWhileACallWaits(t *testing.T) {
	c, ctx := startSecureCluster(t, 1, nil), testutil.Context(t)
	open := func(f rpc.TLSFiles) *grpc.ClientConn { return connectWith(t, c.nodes[0].addr, f) }
	admin, l := c.dialAs(certs.Admin, "ann"), c.lab
	table, err := admin.CreateTable(ctx, counterSchema("mine"), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Push(ctx, []rowraft.Key{1}, make([]float32, 4)); err != nil {
		t.Fatal(err)
	}
	m, index := admin.Map(), uint64(admin.Position().Shards[0])
	ask := func(id rowraft.TableID) *rowraftv1.PullRequest {
		seg := wire.Segment{Table: id, N: 1, Dim: 4, DType: rowraft.Float32, Flags: wire.FlagNoValues}
		return &rowraftv1.PullRequest{MapVersion: uint64(m.SlotsVersion), MinIndex: index + 1,
			Payload: segment(seg, []uint64{1}, nil)}
	}
	servers := rowraftv1.NewReplicasClient(open(l.files(certs.Server, "n2")))
	reader := rowraftv1.NewTableClient(open(l.files(certs.Reader, "rob", "mine")))
	denied := 0
	for i := range 10 {
		hers := counterSchema(fmt.Sprintf("hers%d", i))
		hers.ID = rowraft.TableID(1000 + i)
		said := make(chan error, 1)
		go func() {
			_, err := reader.Pull(ctx, ask(hers.ID))
			said <- rpc.FromStatus(err)
		}()
		reply, err := servers.EnsureTable(ctx, &rowraftv1.EnsureTableRequest{Table: rpc.SchemaToProto(&hers),
			TableEpoch: uint64(m.Epoch)})
		if err != nil {
			t.Fatal(rpc.FromStatus(err))
		}
		index = max(index, reply.AppliedIndex)
		switch code := rowraft.CodeOf(<-said); code {
		case rowraft.CodeDenied:
			denied++
		case rowraft.CodeTableNotFound, rowraft.CodeTooStale:
		default:
			t.Fatalf("a reader of another table asks while %s comes: %v", hers.Name, code)
		}
	}
	t.Logf("denied %d of 10", denied)

	tom := certs.Identity{Cluster: "lab", Name: "tom"}
	tag := tom.Tag()
	seg := wire.Segment{Table: 5000, N: 1, Dim: 4, DType: rowraft.Float32}
	_, err = rowraftv1.NewTableClient(open(l.files(certs.Trainer, "tom", "mine"))).Write(ctx, &rowraftv1.WriteRequest{
		Op:         rowraftv1.WriteOp_WRITE_OP_PUSH,
		MapVersion: uint64(m.SlotsVersion), ClientId: append(tag[:], make([]byte, 8)...), Incarnation: 1, Seq: 1,
		Payload: segment(seg, []uint64{1}, make([]float32, 4)),
	})
	if err := rpc.FromStatus(err); rowraft.CodeOf(err) != rowraft.CodeTableNotFound {
		t.Errorf("a push to a table without a known owner: %v", err)
	}
}
