package node

import (
	"github.com/rowraft/rowraft/internal/testutil"

	"slices"
	"testing"

	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
)

// TestReflectionListsTheServices: grpcurl and similar tools can list the services of a server.
func TestReflectionListsTheServices(t *testing.T) {
	c := startCluster(t, 1, 1)
	stream, err := reflectionpb.NewServerReflectionClient(connect(t, c.nodes[0].addr, nil)).ServerReflectionInfo(
		testutil.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(
		&reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	reply, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range reply.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	for _, want := range []string{"rowraft.v1.Table", "rowraft.v1.Cluster", "grpc.health.v1.Health"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not among %v", want, names)
		}
	}
}
