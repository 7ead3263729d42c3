package placement

import (
	"cmp"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// forcedTransfer transfers leadership away from servers that are drained, decommissioned or stopping. It does the same
// for servers with a full disk, if the shard can then accept pushes without the full disk.
func (t *totals) forcedTransfer() (Step, bool) {
	for i := range t.w.Shards {
		sh := &t.w.Shards[i]
		n := t.node[sh.Leader]
		if n == nil || sh.LeadTried || n.serves() && !(n.Full && t.majorityHasRoom(sh)) {
			continue
		}
		if next, ok := t.successor(sh); ok && !(n.serves() && t.node[next].NearlyFull) {
			return Step{Shard: sh.ID, From: sh.Leader, To: next, Transfer: true}, true
		}
	}
	return Step{}, false
}

// majorityHasRoom reports whether a majority of the replicas of sh is on servers with room on the disk. A replica stops
// when a write fails. Without such a majority the leader with the full disk must stay: it refuses pushes, which keeps
// all replicas running.
func (t *totals) majorityHasRoom(sh *Shard) bool {
	room := count(sh.Replicas, func(r rowraft.NodeID) bool {
		n := t.node[r]
		return n != nil && n.Up && !n.Full && !slices.Contains(sh.Fenced, r)
	})
	return 2*room > len(sh.Replicas)
}

// successor returns the server that should lead sh next: of the servers with a replica, the one whose disk has most
// room, then the one that leads the fewest shards.
func (t *totals) successor(sh *Shard) (best rowraft.NodeID, ok bool) {
	better := func(a, b rowraft.NodeID) bool {
		return cmp.Or(cmp.Compare(t.node[a].diskRank(), t.node[b].diskRank()), cmp.Compare(t.leads[a], t.leads[b])) < 0
	}
	for _, r := range sh.Replicas {
		n := t.node[r]
		if r == sh.Leader || r == sh.Leaving || n == nil || !n.serves() || slices.Contains(sh.Fenced, r) {
			continue
		}
		if best == "" || better(r, best) {
			best = r
		}
	}
	return best, best != ""
}

// free returns the shards whose replicas may change now: they have a leader and no running move.
func (t *totals) free() []*Shard {
	var out []*Shard
	for i := range t.w.Shards {
		if sh := &t.w.Shards[i]; !sh.Moving && sh.Leader != "" {
			out = append(out, sh)
		}
	}
	return out
}

// replaceDead rebuilds a replica of a dead server on another one. Shards with the fewest live replicas come first.
func (t *totals) replaceDead() (Step, bool) {
	return t.replicasOn(func(n *Node) bool { return n == nil || n.Dead }, rowraftv1.MoveReason_MOVE_REASON_DEAD)
}

// emptyDecommissioned moves a replica away from a server that is decommissioned.
func (t *totals) emptyDecommissioned() (Step, bool) {
	return t.replicasOn(func(n *Node) bool { return n != nil && n.Intent == clustermap.Decommission },
		rowraftv1.MoveReason_MOVE_REASON_DECOMMISSION)
}

func (t *totals) replicasOn(bad func(*Node) bool, reason rowraftv1.MoveReason) (best Step, ok bool) {
	fewest := 0
	for _, sh := range t.free() {
		alive := count(sh.Replicas, func(r rowraft.NodeID) bool { n := t.node[r]; return n != nil && n.Up })
		for _, r := range sh.Replicas {
			if !bad(t.node[r]) || ok && alive >= fewest {
				continue
			}
			if to, found := t.target(sh, r); found {
				best, fewest, ok = Step{Shard: sh.ID, From: r, To: to, Reason: reason}, alive, true
			}
		}
	}
	return best, ok
}

// addMissing adds a replica to a shard that has fewer than ReplicasPerShard, because the cluster began with fewer
// servers.
func (t *totals) addMissing() (Step, bool) {
	for _, sh := range t.free() {
		if len(sh.Replicas) >= ReplicasPerShard {
			continue
		}
		if to, found := t.target(sh, ""); found {
			return Step{Shard: sh.ID, To: to, Reason: rowraftv1.MoveReason_MOVE_REASON_MISSING}, true
		}
	}
	return Step{}, false
}

// replaceFenced replaces a replica that differs from the majority. It uses another server. If there is none, it
// removes the replica, and addMissing later adds one on the same server. The caller lists a replica in FencedLong after
// the time that it grants a dead server: the disk is the evidence, and operators need time to inspect it.
func (t *totals) replaceFenced() (Step, bool) {
	for _, sh := range t.free() {
		for _, r := range sh.FencedLong {
			if !slices.Contains(sh.Replicas, r) {
				continue
			}
			s := Step{Shard: sh.ID, From: r, Reason: rowraftv1.MoveReason_MOVE_REASON_FENCED}
			s.To, _ = t.target(sh, r)
			others := count(sh.Replicas, func(o rowraft.NodeID) bool {
				n := t.node[o]
				return o != r && n != nil && n.Up && !slices.Contains(sh.Fenced, o)
			})
			// Without a target the replica is only removed if all others are up and there are at least two, so that the rows are
			// never on one server alone.
			if s.To != "" || others == len(sh.Replicas)-1 && others > 1 {
				return s, true
			}
		}
	}
	return Step{}, false
}

// Target returns the server to which placement would move the replica of a shard that is on from; false if there is
// none.
func Target(w *World, shard rowraft.ShardID, from rowraft.NodeID) (rowraft.NodeID, bool) {
	return total(w).target(&w.Shards[shard], from)
}

// target returns the best server for a replica of sh that leaves from: one in a zone with the fewest other replicas of
// sh, then the one with the fewest replicas.
func (t *totals) target(sh *Shard, from rowraft.NodeID) (best rowraft.NodeID, ok bool) {
	better := func(a, b rowraft.NodeID) int {
		return cmp.Or(cmp.Compare(t.inZone(sh, from, a), t.inZone(sh, from, b)), cmp.Compare(t.load[a], t.load[b]),
			cmp.Compare(t.leads[a], t.leads[b]), cmp.Compare(a, b))
	}
	for i := range t.w.Nodes {
		n := &t.w.Nodes[i]
		if !n.accepts() || sh.on(n.ID) || t.coming[n.ID] >= maxMovesTo {
			continue
		}
		if best == "" || better(n.ID, best) < 0 {
			best = n.ID
		}
	}
	return best, best != ""
}
