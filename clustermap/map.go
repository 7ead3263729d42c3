package clustermap

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/rowraft/rowraft"
)

// SlotsPerShard is the least number of slots for each shard: a cluster of n slots has at most n ÷ SlotsPerShard shards
// (ShardLimit). EvenSlots gives shards that differ by one slot, so by at most one part in 16 of their rows.
const SlotsPerShard = 16

// MaxShards is the largest number of shards that any cluster can have.
const MaxShards = rowraft.MaxSlots / SlotsPerShard

// ShardLimit returns the largest number of shards of a cluster of n slots.
func ShardLimit(n rowraft.SlotCount) int { return int(n) / SlotsPerShard }

// Node is one server process. The id of its data directory identifies it.
type Node struct {
	ID        rowraft.NodeID
	Name      string // shown to operators; unique, may be empty
	Addr      string // host:port of the gRPC services
	PeerAddr  string // host:port of the Raft groups
	Scheduler bool   // the server is also a member of the scheduler
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

	slots []uint16 // slot → shard
	// within has for each shard the first of its slots and the one after the last.
	within [][2]rowraft.Slot
}

// New checks m, sets its slots and returns it. slots has the shard of each slot, and its length is the number of slots
// of the cluster. If slots is nil, New divides DefaultSlots with EvenSlots. The Map keeps slots, which must not
// change.
func New(m Map, slots []uint16) (*Map, error) {
	if slots == nil {
		slots = EvenSlots(len(m.Shards), rowraft.DefaultSlots)
	}
	n := rowraft.SlotCount(min(len(slots), math.MaxUint32))
	if err := n.Check(); err != nil {
		return nil, fmt.Errorf("cluster map: %w", err)
	}
	if limit := ShardLimit(n); len(m.Shards) > limit {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"%d shards in a cluster of %d slots: want at most %d, one for %d slots; more shards need more slots",
			len(m.Shards), n, limit, SlotsPerShard)
	}
	for i, s := range m.Shards {
		if int(s.ID) != i {
			return nil, rowraft.Errorf(rowraft.CodeInternal,
				"cluster map: position %d has shard %d: want shards in order, from 0", i, s.ID)
		}
	}
	for slot, shard := range slots {
		if len(m.Shards) > 0 && int(shard) >= len(m.Shards) {
			return nil, rowraft.Errorf(rowraft.CodeInternal,
				"cluster map: slot %d belongs to shard %d, but there are %d shards", slot, shard, len(m.Shards))
		}
	}
	m.slots, m.within = slots, make([][2]rowraft.Slot, len(m.Shards))
	for slot, shard := range slots {
		if len(m.Shards) > 0 {
			w := &m.within[shard]
			if w[1] == 0 {
				w[0] = rowraft.Slot(slot)
			}
			w[1] = rowraft.Slot(slot) + 1
		}
	}
	return &m, nil
}

// EvenSlots divides n slots among shards in contiguous ranges whose sizes differ by at most one. It gives all slots to
// shard 0 if there are no shards.
func EvenSlots(shards int, n rowraft.SlotCount) []uint16 {
	slots := make([]uint16, n)
	for i := range slots {
		slots[i] = uint16(i * max(shards, 1) / int(n))
	}
	return slots
}

// SlotCount returns the number of slots of the cluster.
func (m *Map) SlotCount() rowraft.SlotCount { return rowraft.SlotCount(len(m.slots)) }

// ShardOfHash returns the shard of the keys with hash h.
func (m *Map) ShardOfHash(h uint64) rowraft.ShardID { return m.ShardOf(SlotOfHash(h, m.SlotCount())) }

// ShardOf returns the shard that holds slot.
func (m *Map) ShardOf(slot rowraft.Slot) rowraft.ShardID { return rowraft.ShardID(m.slots[slot]) }

// Slots returns a copy of the slot → shard table.
func (m *Map) Slots() []uint16 { return slices.Clone(m.slots) }

// SlotsOf returns the slots of one shard in ascending order.
func (m *Map) SlotsOf(shard rowraft.ShardID) []rowraft.Slot {
	var out []rowraft.Slot
	if int(shard) < len(m.within) {
		for s := m.within[shard][0]; s < m.within[shard][1]; s++ {
			if m.ShardOf(s) == shard {
				out = append(out, s)
			}
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
		"there is no server %q; `rowraft server list` lists all servers", what)
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
		if m.ShardOfHash(Hash(table, k)) == shard {
			return k, nil
		}
	}
	return 0, fmt.Errorf("shard %d holds no slot", shard)
}

// NameOf returns the name of a node for messages, or its id if it has no name or is not in the map.
func (m *Map) NameOf(id rowraft.NodeID) string {
	n, _ := m.Node(id)
	return cmp.Or(n.Name, string(id))
}
