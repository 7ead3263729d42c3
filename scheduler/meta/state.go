package meta

import (
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Limits of the state, so that its snapshot stays small.
const (
	MaxNodes      = 1024
	MaxTables     = 1024
	MaxJobs       = 4096
	MaxWorkers    = 4096
	maxNameLength = 128
)

// state is everything that the metadata group stores. Its methods are the commands. A command checks everything before
// it changes anything, so an error means that nothing changed. All members must get the same result: no clock, no
// random number, no map iteration order.
//
// Fields marked immutable are replaced, never changed in place, because readers hold them outside machine.mu.
type state struct {
	index           rowraft.Index
	cluster         clustermap.Map // without the slots
	slots           []uint16       // slot → shard; nil until the shards are made; immutable
	lastIncarnation rowraft.Incarnation
	moves           []Move                    // running, by shard; at most one per shard
	finished        []Move                    // the last maxFinished, oldest first
	lastMove        uint64                    // highest id of a move or an operation
	restore         *rowraftv1.MetaRestore    // decided, not yet closed in every shard; immutable
	begun           []byte                    // id of the restore that may be decided; immutable
	restored        []*rowraftv1.MetaRestored // sources of the tables, last restore first; immutable
	lastRestore     uint16                    // number of the last restore of single tables
	dropped         []DroppedTable            // since the last restore, oldest first; at most MaxDropped
	policies        []*Policy                 // checkpoint policies, by name
	runs            []*rowraftv1.MetaRun      // by job, each immutable
	endedRuns       [][]byte                  // runs that shards must forget, oldest first; immutable
	operations      []Operation               // by id: running, and the last that ended; immutable
	tokens          []*JoinToken              // join tokens, by id; immutable
	retired         []rowraft.NodeID          // retired servers, oldest first; immutable
}

// clone returns a copy that shares no memory that commands change in place.
func (s *state) clone() *state {
	c := *s
	c.cluster.Nodes = slices.Clone(s.cluster.Nodes)
	c.cluster.Shards = slices.Clone(s.cluster.Shards) // replica lists never change in place
	c.cluster.Tables = slices.Clone(s.cluster.Tables)
	c.moves, c.finished = slices.Clone(s.moves), slices.Clone(s.finished)
	c.policies = slices.Clone(s.policies)
	c.dropped, c.runs = slices.Clone(s.dropped), slices.Clone(s.runs)
	return &c
}

// newMap returns the cluster map of the state as an immutable copy.
func (s *state) newMap() (*clustermap.Map, error) {
	m := s.cluster
	m.Nodes, m.Shards, m.Tables = slices.Clone(m.Nodes), slices.Clone(m.Shards), slices.Clone(m.Tables)
	return clustermap.New(m, s.slots)
}

func (s *state) init(cluster rowraft.ClusterID) error {
	switch {
	case cluster == "":
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "the cluster id is empty")
	case s.cluster.Cluster == cluster:
		return nil
	case s.cluster.Cluster != "":
		return rowraft.Errorf(rowraft.CodeIdentity, "the metadata belongs to cluster %s, not to %s", s.cluster.Cluster, cluster)
	}
	s.cluster.Cluster = cluster
	s.cluster.Epoch = 1
	s.cluster.Version++
	return nil
}

func (s *state) putNode(n clustermap.Node) error {
	switch {
	case n.ID == "" || len(n.ID) > maxNameLength || len(n.Name) > maxNameLength:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "node id %q, name %q: want an id, and at most %d bytes each", n.ID, n.Name, maxNameLength)
	case n.Addr == "" || n.PeerAddr == "" || len(n.Addr) > 2*maxNameLength || len(n.PeerAddr) > 2*maxNameLength:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "node %s: address %q, peer address %q: want both, at most %d bytes each", n.ID, n.Addr, n.PeerAddr, 2*maxNameLength)
	}
	if n.NoShards && (!n.Scheduler || s.holdsReplicas(n.ID)) {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "node %s: only a scheduler that holds no replicas can be one of its own; a server with its scheduler is started with `rowraft server --with-scheduler`", n.ID)
	}
	labels, err := clustermap.ParseLabels(n.Labels)
	if err != nil || labels != n.Labels {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "node %s: labels %q: want key=value, by key, with commas between", n.ID, n.Labels)
	}
	if slices.Contains(s.retired, n.ID) {
		return rowraft.Errorf(rowraft.CodeIdentity, "node %s was decommissioned: start it with an empty data directory and it joins as a new server", n.ID)
	}
	for _, o := range s.cluster.Nodes {
		if n.Name != "" && o.Name == n.Name && o.ID != n.ID {
			return rowraft.Errorf(rowraft.CodeAlreadyExists, "the name %s is that of node %s; a server with a new data directory needs another --name", n.Name, o.ID)
		}
	}
	i, found := s.findNode(n.ID)
	if n.Intent = clustermap.Serve; found {
		n.Intent = s.cluster.Nodes[i].Intent
	}
	switch {
	case found && s.cluster.Nodes[i] == n:
		return nil
	case found:
		s.cluster.Nodes[i] = n
	case len(s.cluster.Nodes) >= MaxNodes:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "node %s: the cluster has %d nodes already, the limit", n.ID, MaxNodes)
	default:
		s.cluster.Nodes = slices.Insert(s.cluster.Nodes, i, n)
	}
	s.cluster.Version++
	return nil
}

// holdsReplicas reports whether the map has replicas, or removed replicas, on a node.
func (s *state) holdsReplicas(id rowraft.NodeID) bool {
	return slices.ContainsFunc(s.cluster.Shards, func(sh clustermap.Shard) bool {
		_, has := sh.On(id)
		return has || slices.ContainsFunc(sh.Removed, func(r clustermap.Removed) bool { return r.Node == id })
	})
}

// createShards stores the shards. It does nothing if there are shards already: the leader that proposed the command had
// not applied the earlier one.
func (s *state) createShards(shards []clustermap.Shard, slots []uint16) error {
	if len(s.cluster.Shards) > 0 {
		return nil
	}
	if len(shards) < 1 || len(slots) == 0 {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "%d shards and %d slots: want at least 1 shard and its slots", len(shards), len(slots))
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
			if n, known := s.cluster.Node(r.Node); !known || n.NoShards || r.ID == "" || seen[r.ID] || nodes[r.Node] {
				return rowraft.Errorf(rowraft.CodeInvalidArgument, "shard %d: replica %q on node %q: unknown node, or id or node used twice", sh.ID, r.ID, r.Node)
			}
			seen[r.ID], nodes[r.Node] = true, true
		}
	}
	next := s.cluster
	next.Shards = shards
	if _, err := clustermap.New(next, slots); err != nil {
		return err
	}
	s.cluster.Shards, s.slots = slices.Clone(shards), slots
	s.cluster.Version++
	s.cluster.SlotsVersion = s.cluster.Version
	return nil
}

// createTable adds a table. If ifNotExists is set, it returns an existing table of the same name and shape.
func (s *state) createTable(t rowraft.Schema, ifNotExists bool) (rowraft.Schema, bool, error) {
	if err := t.Validate(); err != nil {
		return t, false, err
	}
	if rows, slots := t.Capacity.Rows, uint64(len(s.slots)); rows > 0 && rows < slots {
		return t, false, rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s: capacity of %d rows: want at least %d, one in each slot", t.Name, rows, slots)
	}
	for _, have := range s.cluster.Tables {
		switch {
		case have.Name == t.Name && !have.SameShape(t):
			return have, false, rowraft.Errorf(rowraft.CodeTableExists, "table %s exists with another shape: it has %s; asked for is %s", t.Name, describe(have), describe(t))
		case have.Name == t.Name && ifNotExists:
			return have, false, nil
		case have.Name == t.Name:
			return have, false, rowraft.Errorf(rowraft.CodeTableExists, "table %s exists", t.Name)
		case have.ID == t.ID:
			return have, false, rowraft.Errorf(rowraft.CodeInternal, "table id %d is that of table %s", t.ID, have.Name)
		}
	}
	switch {
	case t.ID == 0:
		return t, false, rowraft.Errorf(rowraft.CodeInternal, "table %s was proposed without an id", t.Name)
	case len(s.cluster.Tables) >= MaxTables:
		return t, false, rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s: the cluster has %d tables already, the limit; drop one first", t.Name, MaxTables)
	}
	s.cluster.Tables = append(s.cluster.Tables, t)
	s.cluster.Version++
	return t, true, nil
}

func (s *state) issueIncarnation() rowraft.Incarnation {
	s.lastIncarnation++
	return s.lastIncarnation
}
