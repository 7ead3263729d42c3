package clustermap

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rowraft/rowraft"
)

// MaxShards is the largest number of shards of a cluster.
const MaxShards = 256

// Node is one server process. The id of its data directory identifies it.
type Node struct {
	ID        rowraft.NodeID
	Name      string // shown to operators; unique, may be empty
	Addr      string // host:port of the gRPC services
	PeerAddr  string // host:port of the Raft groups
	Scheduler bool   // the server is also a member of the metadata group
	NoShards  bool   // the server only runs a scheduler and holds no replicas
	Labels    string // as returned by ParseLabels
	Intent    Intent
}

// Intent is what the operator wants a server to do.
type Intent uint8

// Serve is the intent of every new server. A drained server leads no shard and gets no replica.
// A decommissioned server also loses the replicas that it has.
const (
	Serve Intent = iota
	Drain
	Decommission
)

// Replica is one copy of a shard.
type Replica struct {
	ID   rowraft.ReplicaID
	Node rowraft.NodeID
}

// Removed is a replica that left its shard permanently. Its node stops it and deletes
// its data only because of this entry, never because a map does not list the replica: a server that
// restarts reads old maps.
type Removed struct {
	Replica
	Version rowraft.MapVersion // version of the first map with this entry
}

// Shard is one Raft group.
type Shard struct {
	ID       rowraft.ShardID
	Replicas []Replica // voters
	Learners []Replica // joining replicas: they receive the log but do not vote
	Removed  []Removed // until their nodes have confirmed the deletion
	// Changes counts the changes of Replicas since the shard was created. While it is 0, Replicas
	// are the founding members, which bootstrap the group; later ones join it.
	Changes uint64
}

// On returns the replica of s on node, a voter or a learner.
func (s *Shard) On(node rowraft.NodeID) (Replica, bool) {
	for _, list := range [][]Replica{s.Replicas, s.Learners} {
		for _, r := range list {
			if r.Node == node {
				return r, true
			}
		}
	}
	return Replica{}, false
}

// ShardsOn returns the shards that have a replica or a learner on node.
func (m *Map) ShardsOn(node rowraft.NodeID) (out []rowraft.ShardID) {
	for i := range m.Shards {
		if _, here := m.Shards[i].On(node); here {
			out = append(out, m.Shards[i].ID)
		}
	}
	return out
}

// Map is one version of the placement of all shards. It is immutable after New.
type Map struct {
	Cluster      rowraft.ClusterID
	Version      rowraft.MapVersion // increases with every change
	SlotsVersion rowraft.MapVersion // Version at which a slot last moved to another shard
	Nodes        []Node
	Shards       []Shard // Shards[i].ID == i
	Tables       []rowraft.Schema
	Epoch        rowraft.TableEpoch

	// FormatVersion is the newest that every server understands, and so the newest in
	// any log; 0 means 1.
	FormatVersion rowraft.FormatVersion

	slots [rowraft.NumSlots]uint8 // slot → shard
}

// New checks m, sets its slots and returns it. slots has NumSlots entries; nil means EvenSlots.
func New(m Map, slots []uint8) (*Map, error) {
	if len(m.Shards) > MaxShards {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "%d shards: want at most %d", len(m.Shards), MaxShards)
	}
	for i, s := range m.Shards {
		if int(s.ID) != i {
			return nil, rowraft.Errorf(rowraft.CodeInternal,
				"cluster map: position %d has shard %d: want shards in order, from 0", i, s.ID)
		}
	}
	if slots == nil {
		slots = EvenSlots(len(m.Shards))
	}
	if len(slots) != rowraft.NumSlots {
		return nil, rowraft.Errorf(rowraft.CodeInternal, "cluster map: %d slots, want %d", len(slots), rowraft.NumSlots)
	}
	for slot, shard := range slots {
		if len(m.Shards) > 0 && int(shard) >= len(m.Shards) {
			return nil, rowraft.Errorf(rowraft.CodeInternal,
				"cluster map: slot %d belongs to shard %d, but there are %d shards", slot, shard, len(m.Shards))
		}
	}
	copy(m.slots[:], slots)
	return &m, nil
}

// EvenSlots divides the slots among n shards in contiguous ranges whose sizes
// differ by at most one. n = 0 gives all slots to shard 0.
func EvenSlots(n int) []uint8 {
	slots := make([]uint8, rowraft.NumSlots)
	for i := range slots {
		slots[i] = uint8(i * max(n, 1) / rowraft.NumSlots)
	}
	return slots
}

// ShardOf returns the shard that holds slot.
func (m *Map) ShardOf(slot rowraft.Slot) rowraft.ShardID { return rowraft.ShardID(m.slots[slot]) }

// Slots returns a copy of the slot → shard table.
func (m *Map) Slots() []uint8 { return append([]uint8(nil), m.slots[:]...) }

// SlotsOf returns the slots of one shard in ascending order.
func (m *Map) SlotsOf(shard rowraft.ShardID) []rowraft.Slot {
	var out []rowraft.Slot
	for s, owner := range m.slots {
		if rowraft.ShardID(owner) == shard {
			out = append(out, rowraft.Slot(s))
		}
	}
	return out
}

// Node returns the node with id.
func (m *Map) Node(id rowraft.NodeID) (Node, bool) {
	for _, n := range m.Nodes {
		if n.ID == id {
			return n, true
		}
	}
	return Node{}, false
}

// Servers returns the nodes that can hold replicas.
func (m *Map) Servers() []Node {
	return slices.DeleteFunc(slices.Clone(m.Nodes), func(n Node) bool { return n.NoShards })
}

// FindNode returns the node with the given name or id, or with an id that starts with what, if
// no other id does.
func (m *Map) FindNode(what string) (Node, error) {
	var found []Node
	for _, n := range m.Nodes {
		if what != "" && (n.Name == what || string(n.ID) == what) {
			return n, nil
		}
		if len(what) >= 4 && strings.HasPrefix(string(n.ID), what) {
			found = append(found, n)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	return Node{}, rowraft.Errorf(rowraft.CodeNotFound,
		"there is no server %q; `rowraft cluster status` lists all servers", what)
}

// Table returns the schema of the table called name.
func (m *Map) Table(name string) (rowraft.Schema, error) {
	for _, t := range m.Tables {
		if t.Name == name {
			return t, nil
		}
	}
	return rowraft.Schema{}, rowraft.Errorf(rowraft.CodeTableNotFound,
		"table %q does not exist; `rowraft table list` lists all tables", name)
}

// KeyInShard returns the smallest key of a sparse table that is in shard.
// Trainers use it to find a key for their audit row in each shard.
func (m *Map) KeyInShard(table rowraft.TableID, shard rowraft.ShardID) (rowraft.Key, error) {
	for k := rowraft.Key(0); k < 1<<20; k++ {
		if m.ShardOf(SlotOf(table, rowraft.Sparse, k)) == shard {
			return k, nil
		}
	}
	return 0, fmt.Errorf("shard %d holds no slot", shard)
}
