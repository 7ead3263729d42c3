package meta

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// topology is the part of the state that says where the shards are: the servers, the shards with their replicas, and
// the moves and operations that change them. Every command that changes the map increments its version once.
//
// Invariants: a replica id is used once; at most one move runs per shard; operations and moves share their ids; a
// retired server never comes back.
type topology struct {
	cluster    clustermap.Map   // without the slots, the tables and their epoch
	slots      []uint16         // slot → shard; nil until the shards are made; immutable
	moves      []Move           // running, by shard
	finished   []Move           // the last maxFinished, oldest first
	lastMove   uint64           // highest id of a move or an operation
	operations []Operation      // by id: running, and the last that ended; immutable
	retired    []rowraft.NodeID // retired servers, oldest first; immutable
}

func (t *topology) putNode(n clustermap.Node) error {
	switch {
	case n.ID == "" || len(n.ID) > maxNameLength || len(n.Name) > maxNameLength:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "server id %q, name %q: want an id, and at most %d bytes each",
			n.ID, n.Name, maxNameLength)
	case n.Addr == "" || n.PeerAddr == "" || len(n.Addr) > 2*maxNameLength || len(n.PeerAddr) > 2*maxNameLength:
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"server %s: address %q, peer address %q: want both, at most %d bytes each", n.ID, n.Addr, n.PeerAddr,
			2*maxNameLength)
	}
	if n.NoShards && (!n.Scheduler || t.holdsReplicas(n.ID)) {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "server %s: only a scheduler that holds no replicas can be one "+
			"of its own; a server with its scheduler is started with `rowraft server --with-scheduler`", n.ID)
	}
	labels, err := clustermap.ParseLabels(n.Labels)
	if err != nil || labels != n.Labels {
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"server %s: labels %q: want key=value, by key, with commas between", n.ID, n.Labels)
	}
	if slices.Contains(t.retired, n.ID) {
		return rowraft.Errorf(rowraft.CodeIdentity,
			"server %s was decommissioned: start it with an empty data directory and it joins as a new server", n.ID)
	}
	for _, o := range t.cluster.Nodes {
		if n.Name != "" && o.Name == n.Name && o.ID != n.ID {
			return rowraft.Errorf(rowraft.CodeAlreadyExists,
				"the server at %s has the name %s already: start this one with another --name (without --name a server has the "+
					"name that its data directory stores; one that stores none gets a free one)", o.Addr, n.Name)
		}
	}
	i, found := t.findNode(n.ID)
	// The intent is the operator's, not the server's: a drained server that registers again after a restart stays drained.
	if n.Intent = clustermap.Serve; found {
		n.Intent = t.cluster.Nodes[i].Intent
	}
	switch {
	// A server registers at each start. An entry that changes nothing must not raise the version, or each restart would
	// send a new map to all clients.
	case found && t.cluster.Nodes[i] == n:
		return nil
	case found:
		t.cluster.Nodes[i] = n
	case len(t.cluster.Nodes) >= MaxNodes:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "server %s: the cluster has %d servers already, the limit", n.ID,
			MaxNodes)
	default:
		t.cluster.Nodes = slices.Insert(t.cluster.Nodes, i, n)
	}
	t.cluster.Version++
	return nil
}

// holdsReplicas reports whether the map has replicas, or removed replicas, on a node.
func (t *topology) holdsReplicas(id rowraft.NodeID) bool {
	return slices.ContainsFunc(t.cluster.Shards, func(sh clustermap.Shard) bool {
		_, has := sh.On(id)
		return has || slices.ContainsFunc(sh.Removed, func(r clustermap.Removed) bool { return r.Node == id })
	})
}

// createShards stores the shards. It does nothing if there are shards already: the leader that proposed the command had
// not applied the earlier one.
func (t *topology) createShards(shards []clustermap.Shard, slots []uint16) error {
	if len(t.cluster.Shards) > 0 {
		return nil
	}
	if len(shards) < 1 || len(slots) == 0 {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "%d shards and %d slots: want at least 1 shard and its slots",
			len(shards), len(slots))
	}
	seen := make(map[rowraft.ReplicaID]bool)
	for _, sh := range shards {
		if len(sh.Replicas) == 0 {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "shard %d has no replicas", sh.ID)
		}
		if len(sh.Learners)+len(sh.Removed) > 0 || sh.Changes != 0 {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "shard %d is new and its replicas changed already", sh.ID)
		}
		nodes := make(map[rowraft.NodeID]bool)
		for _, r := range sh.Replicas {
			if n, known := t.cluster.Node(r.Node); !known || n.NoShards || r.ID == "" || seen[r.ID] || nodes[r.Node] {
				return rowraft.Errorf(rowraft.CodeInvalidArgument,
					"shard %d: replica %q on server %q: unknown server, or id or server used twice", sh.ID, r.ID, r.Node)
			}
			seen[r.ID], nodes[r.Node] = true, true
		}
	}
	// clustermap.New checks the slots against the shards. It runs on a copy, because a command that is refused changes
	// nothing.
	next := t.cluster
	next.Shards = shards
	if _, err := clustermap.New(next, slots); err != nil {
		return err
	}
	t.cluster.Shards, t.slots = slices.Clone(shards), slots
	t.cluster.Version++
	t.cluster.SlotsVersion = t.cluster.Version
	return nil
}

// hasReplica reports whether a shard has, or recently had, a replica of this id.
func (t *topology) hasReplica(id rowraft.ReplicaID) bool {
	for _, sh := range t.cluster.Shards {
		is := func(r clustermap.Replica) bool { return r.ID == id }
		if slices.ContainsFunc(sh.Replicas, is) || slices.ContainsFunc(sh.Learners, is) ||
			slices.ContainsFunc(sh.Removed, func(r clustermap.Removed) bool { return r.ID == id }) {
			return true
		}
	}
	return false
}

// putShard replaces a shard and increments the version of the map. The caller must have cloned the lists in sh that it
// changed: published maps share the old ones.
func (t *topology) putShard(sh clustermap.Shard) {
	t.cluster.Shards = slices.Clone(t.cluster.Shards)
	t.cluster.Shards[sh.ID] = sh
	t.cluster.Version++
}

// findNode returns the index of a node in the map, or where it belongs.
func (t *topology) findNode(id rowraft.NodeID) (int, bool) {
	return slices.BinarySearchFunc(t.cluster.Nodes, id, func(a clustermap.Node, id rowraft.NodeID) int {
		return strings.Compare(string(a.ID), string(id))
	})
}

// nodeName returns the name of a node for messages.
func (t *topology) nodeName(id rowraft.NodeID) string {
	return t.cluster.NameOf(id)
}

// raiseVersion applies the command. The version never goes down.
func (t *topology) raiseVersion(c *rowraftv1.MetaRaiseVersion) error {
	v := c.GetFormatVersion()
	// The headers of the shards' entries have 16 bits for the version (docs/formats/entry.md); 1<<15 is well below.
	if v > 1<<15 {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "format version %d: want at most %d", v, 1<<15)
	}
	if next := rowraft.FormatVersion(v); next > t.cluster.FormatVersion {
		t.cluster.FormatVersion = next
		t.cluster.Version++
	}
	return nil
}

// save adds the moves, the operations and the retired servers to a snapshot.
func (t *topology) save(p *rowraftv1.MetaState) {
	for i := range t.moves {
		p.Moves = append(p.Moves, t.moves[i].ToProto())
	}
	for i := range t.finished {
		p.FinishedMoves = append(p.FinishedMoves, t.finished[i].ToProto())
	}
	p.LastMove = t.lastMove
	for i := range t.operations {
		p.Operations = append(p.Operations, t.operations[i].ToProto())
	}
	for _, id := range t.retired {
		p.Retired = append(p.Retired, string(id))
	}
}

// load takes the topology of a snapshot, whose map is m, and checks it.
func (t *topology) load(p *rowraftv1.MetaState, m *clustermap.Map) error {
	t.cluster = *m
	t.cluster.Tables, t.cluster.Epoch = nil, 0
	if len(m.Shards) > 0 {
		// Without shards the map of a snapshot has no slots, and createShards decides their number.
		t.slots = m.Slots()
	}
	if !slices.IsSortedFunc(t.cluster.Nodes, func(a, b clustermap.Node) int {
		return strings.Compare(string(a.ID),
			string(b.ID))
	}) {
		return fmt.Errorf("servers are out of order")
	}
	if err := t.loadMoves(p); err != nil {
		return err
	}
	return t.loadOperations(p)
}
