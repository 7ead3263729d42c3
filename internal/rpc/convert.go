package rpc

import (
	"math"
	"time"

	"google.golang.org/grpc/backoff"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

var backoffConfig = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
	MaxDelay: 500 * time.Millisecond}

// SchemaToProto and SchemaFromProto convert a table's schema. SchemaFromProto does not validate.
func SchemaToProto(s *rowraft.Schema) *rowraftv1.TableSchema {
	p := &rowraftv1.TableSchema{
		Id: uint64(s.ID), Name: s.Name, Kind: uint32(s.Kind), Dim: uint32(s.Dim),
		Initializer: &rowraftv1.Initializer{Kind: uint32(s.Initializer.Kind), Seed: s.Initializer.Seed,
			NameHash: s.Initializer.NameHash, A: s.Initializer.A, B: s.Initializer.B},
		Optimizer: &rowraftv1.Optimizer{
			Kind: uint32(s.Optimizer.Kind), Lr: s.Optimizer.LR, InitialAccumulator: s.Optimizer.InitialAccumulator,
			Epsilon: s.Optimizer.Epsilon, Beta1: s.Optimizer.Beta1, Beta2: s.Optimizer.Beta2,
			Momentum: s.Optimizer.Momentum, WeightDecay: s.Optimizer.WeightDecay, Bound: s.Optimizer.Bound,
			L1: s.Optimizer.L1, L2: s.Optimizer.L2, Beta: s.Optimizer.Beta,
		},
		Storage: uint32(s.Normal().Storage), ExpireTicks: s.Expire, SumPushes: s.SumPushes,
		MemoryBytes: s.Memory,
	}
	if a := s.Admission; a != (rowraft.Admission{}) {
		p.Admission = &rowraftv1.Admission{Kind: uint32(a.Kind), Count: a.Count, Probability: a.Probability}
	}
	if c := s.Capacity; c != (rowraft.Capacity{}) {
		p.Capacity = &rowraftv1.Capacity{Rows: c.Rows, Evict: uint32(c.Evict)}
	}
	return p
}

func SchemaFromProto(p *rowraftv1.TableSchema) rowraft.Schema {
	small := func(v uint32) uint8 { // an unknown kind must stay unknown
		if v > 255 {
			return 255
		}
		return uint8(v)
	}
	i, o, a, c := p.GetInitializer(), p.GetOptimizer(), p.GetAdmission(), p.GetCapacity()
	s := rowraft.Schema{
		ID: rowraft.TableID(p.GetId()), Name: p.GetName(), Kind: rowraft.TableKind(small(p.GetKind())), Dim: int(p.GetDim()),
		Initializer: rowraft.Initializer{Kind: rowraft.InitializerKind(small(i.GetKind())), Seed: i.GetSeed(),
			NameHash: i.GetNameHash(), A: i.GetA(), B: i.GetB()},
		Optimizer: rowraft.Optimizer{
			Kind: rowraft.OptimizerKind(small(o.GetKind())), LR: o.GetLr(), InitialAccumulator: o.GetInitialAccumulator(),
			Epsilon: o.GetEpsilon(), Beta1: o.GetBeta1(), Beta2: o.GetBeta2(),
			Momentum: o.GetMomentum(), WeightDecay: o.GetWeightDecay(), Bound: o.GetBound(), L1: o.GetL1(), L2: o.GetL2(),
			Beta: o.GetBeta(),
		},
		Storage: rowraft.DType(small(p.GetStorage())),
		Admission: rowraft.Admission{Kind: rowraft.AdmissionKind(small(a.GetKind())), Count: a.GetCount(),
			Probability: a.GetProbability()},
		Expire:    p.GetExpireTicks(),
		Capacity:  rowraft.Capacity{Rows: c.GetRows(), Evict: rowraft.EvictKind(small(c.GetEvict()))},
		SumPushes: p.GetSumPushes(),
		Memory:    p.GetMemoryBytes(),
	}
	return s.Normal()
}

// MapToProto and MapFromProto convert a cluster map.
func MapToProto(m *clustermap.Map) *rowraftv1.Map {
	p := &rowraftv1.Map{
		ClusterId: string(m.Cluster), Version: uint64(m.Version), SlotsVersion: uint64(m.SlotsVersion),
		Slots: SlotsToProto(m.Slots()), Epoch: uint64(m.Epoch), FormatVersion: uint32(m.FormatVersion),
	}
	for _, n := range m.Nodes {
		p.Nodes = append(p.Nodes, NodeToProto(n))
	}
	for _, s := range m.Shards {
		p.Shards = append(p.Shards, ShardToProto(s))
	}
	for i := range m.Tables {
		p.Tables = append(p.Tables, SchemaToProto(&m.Tables[i]))
	}
	return p
}

func MapFromProto(p *rowraftv1.Map) (*clustermap.Map, error) {
	m := clustermap.Map{
		Cluster: rowraft.ClusterID(p.GetClusterId()), Version: rowraft.MapVersion(p.GetVersion()),
		SlotsVersion: rowraft.MapVersion(p.GetSlotsVersion()), Epoch: rowraft.TableEpoch(p.GetEpoch()),
		FormatVersion: rowraft.FormatVersion(min(p.GetFormatVersion(), math.MaxUint16)),
	}
	for _, n := range p.GetNodes() {
		m.Nodes = append(m.Nodes, NodeFromProto(n))
	}
	for _, s := range p.GetShards() {
		m.Shards = append(m.Shards, ShardFromProto(s))
	}
	for _, t := range p.GetTables() {
		m.Tables = append(m.Tables, SchemaFromProto(t))
	}
	slots, err := SlotsFromProto(p.GetSlots())
	if err != nil {
		return nil, err
	}
	return clustermap.New(m, slots)
}

// SlotsToProto and SlotsFromProto convert the list that has the shard of each slot.
func SlotsToProto(slots []uint16) (out []*rowraftv1.SlotRange) {
	for i, shard := range slots {
		if i == 0 || shard != slots[i-1] {
			out = append(out, &rowraftv1.SlotRange{Shard: uint32(shard)})
		}
		out[len(out)-1].Count++
	}
	return out
}

// SlotsFromProto returns nil if there are no ranges.
//
// Errors: CodeInvalidArgument if the ranges are not those of a cluster.
func SlotsFromProto(ranges []*rowraftv1.SlotRange) (slots []uint16, err error) {
	for i, r := range ranges {
		n, shard := r.GetCount(), r.GetShard()
		if n < 1 || uint64(len(slots))+uint64(n) > rowraft.MaxSlots || shard >= clustermap.MaxShards {
			return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
				"slot range %d has %d slots after %d others, for shard %d: want at least 1 slot, at most %d in all, and a shard "+
					"below %d",
				i, n, len(slots), shard, rowraft.MaxSlots, clustermap.MaxShards)
		}
		for range n {
			slots = append(slots, uint16(shard))
		}
	}
	return slots, nil
}

// ShardToProto and ShardFromProto convert a shard of the map.
func ShardToProto(s clustermap.Shard) *rowraftv1.Shard {
	p := &rowraftv1.Shard{Id: uint32(s.ID), Replicas: replicasToProto(s.Replicas), Learners: replicasToProto(s.Learners),
		Changes: s.Changes}
	for _, r := range s.Removed {
		p.Removed = append(p.Removed,
			&rowraftv1.RemovedReplica{Replica: ReplicaToProto(r.Replica), Version: uint64(r.Version)})
	}
	return p
}

func ShardFromProto(p *rowraftv1.Shard) clustermap.Shard {
	s := clustermap.Shard{
		ID: rowraft.ShardID(p.GetId()), Replicas: replicasFromProto(p.GetReplicas()),
		Learners: replicasFromProto(p.GetLearners()), Changes: p.GetChanges(),
	}
	for _, r := range p.GetRemoved() {
		s.Removed = append(s.Removed,
			clustermap.Removed{Replica: ReplicaFromProto(r.GetReplica()), Version: rowraft.MapVersion(r.GetVersion())})
	}
	return s
}

// ReplicaToProto and ReplicaFromProto convert one replica.
func ReplicaToProto(r clustermap.Replica) *rowraftv1.Replica {
	return &rowraftv1.Replica{Id: string(r.ID), Node: string(r.Node)}
}

func ReplicaFromProto(p *rowraftv1.Replica) clustermap.Replica {
	return clustermap.Replica{ID: rowraft.ReplicaID(p.GetId()), Node: rowraft.NodeID(p.GetNode())}
}

func replicasToProto(in []clustermap.Replica) []*rowraftv1.Replica {
	var out []*rowraftv1.Replica
	for _, r := range in {
		out = append(out, ReplicaToProto(r))
	}
	return out
}

func replicasFromProto(in []*rowraftv1.Replica) []clustermap.Replica {
	var out []clustermap.Replica
	for _, r := range in {
		out = append(out, ReplicaFromProto(r))
	}
	return out
}

func NodeToProto(n clustermap.Node) *rowraftv1.Node {
	return &rowraftv1.Node{Id: string(n.ID), Name: n.Name, Addr: n.Addr, PeerAddr: n.PeerAddr, Scheduler: n.Scheduler,
		NoShards: n.NoShards, Labels: n.Labels, Intent: rowraftv1.NodeIntent(n.Intent)}
}

func NodeFromProto(n *rowraftv1.Node) clustermap.Node {
	return clustermap.Node{ID: rowraft.NodeID(n.GetId()), Name: n.GetName(), Addr: n.GetAddr(),
		PeerAddr: n.GetPeerAddr(), Scheduler: n.GetScheduler(), NoShards: n.GetNoShards(),
		Labels: n.GetLabels(), Intent: intentFromProto(n.GetIntent())}
}

// intentFromProto maps an unknown intent to an unknown intent.
func intentFromProto(i rowraftv1.NodeIntent) clustermap.Intent {
	if i < 0 || i > math.MaxUint8 {
		return math.MaxUint8
	}
	return clustermap.Intent(i)
}

// PositionsToProto converts positions for requests and replies of jobs.
func PositionsToProto(all []rowraft.Position) []*rowraftv1.DataPosition {
	out := make([]*rowraftv1.DataPosition, len(all))
	for i, p := range all {
		out[i] = &rowraftv1.DataPosition{Id: uint64(p.ID), Offset: p.Offset}
	}
	return out
}
