package node

import (
	"io"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// The server refuses a call that names another cluster before the call has any effect, unary or stream. It
// answers a request for the map from a client of another cluster at once, whatever version the client
// knows.
func TestCallsForAnotherClusterAreRefused(t *testing.T) {
	r, c := openRaw(t)
	other, own := rpc.WithCluster(testutil.Context(t), "another"), rpc.WithCluster(testutil.Context(t), r.m.Cluster)
	payload := segment(wire.Segment{Table: r.table.ID, N: 1, Dim: 4, DType: rowraft.Float32}, []uint64{10},
		make([]float32, 4))
	push := &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_PUSH, MapVersion: uint64(r.m.SlotsVersion),
		ClientId: r.id[:], Incarnation: 1 << 40, Seq: 1, Payload: payload}
	if _, err := r.stub.Write(other, push); rowraft.CodeOf(err) != rowraft.CodeIdentity {
		t.Errorf("a push for another cluster: %v, want CodeIdentity", err)
	}
	if reply, err := r.stub.Write(own, push); err != nil || reply.Duplicate {
		t.Errorf("the same push for this cluster: %v, %v", reply, err)
	}
	stream, err := r.stub.Scan(other, &rowraftv1.ScanRequest{MapVersion: uint64(r.m.SlotsVersion),
		Table: uint64(r.table.ID), LastSlot: rowraft.DefaultSlots - 1})
	if err == nil {
		_, err = stream.Recv()
	}
	if err == io.EOF || rowraft.CodeOf(rpc.FromStatus(err)) != rowraft.CodeIdentity {
		t.Errorf("a scan of another cluster: %v, want CodeIdentity", err)
	}
	maps := rowraftv1.NewClusterClient(connect(t, c.nodes[0].addr, nil))
	reply, err := maps.GetMap(testutil.Context(t), &rowraftv1.GetMapRequest{KnownVersion: 1 << 40, WaitNs: 1 << 50,
		ClusterId: "another"})
	if err != nil || reply.Map.GetClusterId() != string(r.m.Cluster) {
		t.Errorf("the map for a client of another cluster: %v, %v", reply, err)
	}
}
