package scheduler

import (
	"fmt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func shardsFromProto(in []*rowraftv1.Shard) []clustermap.Shard {
	out := make([]clustermap.Shard, len(in))
	for i, s := range in {
		out[i].ID = rowraft.ShardID(s.GetId())
		for _, r := range s.GetReplicas() {
			out[i].Replicas = append(out[i].Replicas, clustermap.Replica{ID: rowraft.ReplicaID(r.GetId()), Node: rowraft.NodeID(r.GetNode())})
		}
	}
	return out
}

func shardsToProto(in []clustermap.Shard) []*rowraftv1.Shard {
	out := make([]*rowraftv1.Shard, len(in))
	for i, s := range in {
		out[i] = &rowraftv1.Shard{Id: uint32(s.ID)}
		for _, r := range s.Replicas {
			out[i].Replicas = append(out[i].Replicas, &rowraftv1.Replica{Id: string(r.ID), Node: string(r.Node)})
		}
	}
	return out
}

// describe tells the shape of a table in a few words.
func describe(s rowraft.Schema) string {
	i, o := s.Initializer, s.Optimizer
	return fmt.Sprintf("%s, dim %d, initializer {kind %d, seed %d, %v, %v}, optimizer %s {lr %v, accumulator %v, epsilon %v, betas %v %v}",
		s.Kind, s.Dim, i.Kind, i.Seed, i.A, i.B, o.Kind, o.LR, o.InitialAccumulator, o.Epsilon, o.Beta1, o.Beta2)
}
