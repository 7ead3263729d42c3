package node

import (
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// A server of another cluster may get an address of a scheduler.
func TestAMapOfAnotherClusterIsRefused(t *testing.T) {
	m, err := clustermap.New(clustermap.Map{Cluster: "theirs", Version: 9, Epoch: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	reply := &rowraftv1.GetMapReply{Map: rpc.MapToProto(m)}
	if _, err := mapOf("ours", reply); rowraft.CodeOf(err) != rowraft.CodeIdentity {
		t.Errorf("a map of another cluster: %v, want CodeIdentity", err)
	}
	if got, err := mapOf("theirs", reply); err != nil || got.Version != 9 {
		t.Errorf("a map of this cluster: %v, %v", got, err)
	}
}
