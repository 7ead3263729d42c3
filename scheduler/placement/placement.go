package placement

import (
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// ReplicasPerShard is the number of replicas of each shard; a cluster of fewer servers has fewer.
const ReplicasPerShard = 3

// World is the input of Next.
type World struct {
	Nodes  []Node // servers that can hold replicas, by id
	Shards []Shard
	// Balance permits steps for balance: every server is up or dead, and no restore runs.
	Balance bool
}

// Node is one server.
type Node struct {
	ID         rowraft.NodeID
	Zone       string
	Up         bool
	Dead       bool // silent for so long that its replicas are rebuilt on other servers
	Stopping   bool // it has reported that it is stopping
	Full       bool // free disk space is less than the reserve: the server refuses pushes to the shards that it leads
	NearlyFull bool // free disk space is near the reserve or less
	Intent     clustermap.Intent
}

// serves reports whether n may lead shards and receive replicas.
func (n *Node) serves() bool { return n.Up && !n.Stopping && n.Intent == clustermap.Serve }

// accepts reports whether n may receive replicas, and leadership for balance, now.
func (n *Node) accepts() bool { return n.serves() && !n.Full }

// diskRank ranks the disk of n: 0 for a disk with room, 2 for a full one.
func (n *Node) diskRank() int {
	switch {
	case n.Full:
		return 2
	case n.NearlyFull:
		return 1
	}
	return 0
}

// Shard is one shard and its running changes.
type Shard struct {
	ID         rowraft.ShardID
	Replicas   []rowraft.NodeID // voters
	Joining    rowraft.NodeID   // node of the learner; "" if there is none
	Leaving    rowraft.NodeID   // node whose replica a running move removes; "" if none
	Moving     bool             // a move runs
	Leader     rowraft.NodeID   // node that is up and reported to lead; "" if none
	LedLong    bool             // the leader has led long enough to transfer the leadership for balance
	LeadTried  bool             // a transfer of the leadership was tried a moment ago
	Fenced     []rowraft.NodeID // nodes whose replica is fenced: it serves nothing and does not vote
	FencedLong []rowraft.NodeID // the fenced nodes whose disk was kept long enough for an inspection
}

// on reports whether sh has, or will have, a replica on node.
func (sh *Shard) on(node rowraft.NodeID) bool {
	return slices.Contains(sh.Replicas, node) || sh.Joining == node
}

// Step is one change: of the leader if Transfer is set, otherwise of the replicas. Without From it adds a replica,
// without To it removes one.
type Step struct {
	Shard    rowraft.ShardID
	From, To rowraft.NodeID
	Transfer bool
	Reason   rowraftv1.MoveReason
}

// Limits of concurrent moves that Next starts. Each move is a snapshot that uses a network and two disks, which pushes
// need too.
const (
	MaxMoves        = 4 // in total
	maxMovesTo      = 2 // to one server
	maxBalanceMoves = 2
)

// totals holds sums over a World.
type totals struct {
	w      *World
	node   map[rowraft.NodeID]*Node
	load   map[rowraft.NodeID]int // replicas by node after the running moves
	coming map[rowraft.NodeID]int
	leads  map[rowraft.NodeID]int
	moving int
}

func total(w *World) *totals {
	t := &totals{
		w: w, node: make(map[rowraft.NodeID]*Node), load: make(map[rowraft.NodeID]int),
		coming: make(map[rowraft.NodeID]int), leads: make(map[rowraft.NodeID]int),
	}
	for i := range w.Nodes {
		t.node[w.Nodes[i].ID] = &w.Nodes[i]
	}
	for _, sh := range w.Shards {
		for _, r := range sh.Replicas {
			if r != sh.Leaving {
				t.load[r]++
			}
		}
		if sh.Joining != "" {
			t.load[sh.Joining]++
			t.coming[sh.Joining]++
		}
		if sh.Moving {
			t.moving++
		}
		if sh.Leader != "" {
			t.leads[sh.Leader]++
		}
	}
	return t
}

// Next returns the most urgent change; false if there is none.
func Next(w *World) (Step, bool) {
	// Forced steps come before the others, and steps for balance last: a shard that is short of a replica must not wait
	// for one that is only unevenly placed.
	t := total(w)
	if s, ok := t.forcedTransfer(); ok {
		return s, true
	}
	if t.moving < MaxMoves {
		for _, find := range []func() (Step, bool){t.replaceDead, t.addMissing, t.replaceFenced, t.emptyDecommissioned} {
			if s, ok := find(); ok {
				return s, true
			}
		}
	}
	if !w.Balance {
		return Step{}, false
	}
	// Fewer than for necessary moves, so that balance never uses up the limit that a dead server needs.
	if t.moving < maxBalanceMoves {
		if s, ok := t.balanceReplicas(); ok {
			return s, true
		}
	}
	return t.balanceLeaders()
}

// inZone counts the replicas of sh in the zone of node, without those on from and on node.
func (t *totals) inZone(sh *Shard, from, node rowraft.NodeID) int {
	return count(sh.Replicas, func(r rowraft.NodeID) bool {
		n := t.node[r]
		return r != from && r != node && n != nil && n.Zone == t.node[node].Zone
	})
}

// count returns how many of the nodes fulfil is.
func count(nodes []rowraft.NodeID, is func(rowraft.NodeID) bool) (n int) {
	for _, node := range nodes {
		if is(node) {
			n++
		}
	}
	return n
}
