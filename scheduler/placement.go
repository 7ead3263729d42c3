package scheduler

import (
	"cmp"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// How replicas are placed
//
// A world is what the leader of the metadata group knows of servers and shards at one moment. nextStep takes a world
// and returns its most urgent change. In this order:
//
//  1. Transfer leadership away from a server that must not lead.
//  2. Rebuild a replica of a dead server, add a missing one, replace a fenced one, empty a decommissioned server.
//  3. Move a replica for balance.
//  4. Transfer leadership for balance.
//
// nextStep is a pure function, so the next leader of the metadata group takes the same steps in the same world. Each
// step for balance makes the world strictly better: fewer replicas of a shard in one zone, then a more even number of
// replicas per server; a more even number of leaders per server, or one transfer less until then. So these steps end.

// world is the input of nextStep.
type world struct {
	nodes  []worldNode // servers that can hold replicas, by id
	shards []worldShard
	// settled permits steps for balance: every server is up or dead, and no restore runs.
	settled bool
}

// worldNode is one server.
type worldNode struct {
	id     rowraft.NodeID
	zone   string
	up     bool
	dead   bool // silent for so long that its replicas are rebuilt on other servers
	ending bool // it has reported that it is stopping
	full   bool // free disk space is less than the reserve: the server refuses pushes to the shards that it leads
	tight  bool // free disk space is near the reserve or less
	intent clustermap.Intent
}

// serves reports whether n may lead shards and receive replicas.
func (n *worldNode) serves() bool { return n.up && !n.ending && n.intent == clustermap.Serve }

// takes reports whether n may receive replicas, and leadership for balance, now.
func (n *worldNode) takes() bool { return n.serves() && !n.full }

// cramped ranks the disk of n: 0 for a disk with room, 2 for a full one.
func (n *worldNode) cramped() int {
	switch {
	case n.full:
		return 2
	case n.tight:
		return 1
	}
	return 0
}

// worldShard is one shard and its running changes.
type worldShard struct {
	id       rowraft.ShardID
	replicas []rowraft.NodeID // voters
	joining  rowraft.NodeID   // node of the learner; "" if there is none
	leaving  rowraft.NodeID   // node whose replica a running move removes; "" if none
	moving   bool
	leader   rowraft.NodeID   // node that is up and reported to lead; "" if none
	rested   bool             // the leader has led long enough to transfer the leadership for balance
	held     bool             // a transfer was tried a moment ago
	fenced   []rowraft.NodeID // nodes whose replica is fenced: it serves nothing and does not vote
	lost     []rowraft.NodeID // the fenced nodes whose disk was kept long enough for an inspection
}

// on reports whether sh has, or will have, a replica on node.
func (sh *worldShard) on(node rowraft.NodeID) bool {
	return slices.Contains(sh.replicas, node) || sh.joining == node
}

// step is one change: of the leader if transfer is set, otherwise of the replicas. Without from it adds a replica,
// without to it removes one.
type step struct {
	shard    rowraft.ShardID
	from, to rowraft.NodeID
	transfer bool
	reason   rowraftv1.MoveReason
}

// Limits of concurrent moves that the scheduler starts. Each move is a snapshot that uses a network and two disks,
// which pushes need too.
const (
	maxMoves       = 4
	maxMovesTo     = 2 // to one server
	maxBalanceMove = 2
)

// tallies holds sums over a world.
type tallies struct {
	w      *world
	node   map[rowraft.NodeID]*worldNode
	load   map[rowraft.NodeID]int // replicas by node after the running moves
	coming map[rowraft.NodeID]int
	leads  map[rowraft.NodeID]int
	moving int
}

func tally(w *world) *tallies {
	t := &tallies{
		w: w, node: make(map[rowraft.NodeID]*worldNode), load: make(map[rowraft.NodeID]int),
		coming: make(map[rowraft.NodeID]int), leads: make(map[rowraft.NodeID]int),
	}
	for i := range w.nodes {
		t.node[w.nodes[i].id] = &w.nodes[i]
	}
	for _, sh := range w.shards {
		for _, r := range sh.replicas {
			if r != sh.leaving {
				t.load[r]++
			}
		}
		if sh.joining != "" {
			t.load[sh.joining]++
			t.coming[sh.joining]++
		}
		if sh.moving {
			t.moving++
		}
		if sh.leader != "" {
			t.leads[sh.leader]++
		}
	}
	return t
}

// nextStep returns the most urgent change; false if there is none.
func nextStep(w *world) (step, bool) {
	t := tally(w)
	if s, ok := t.leadThatMustGo(); ok {
		return s, true
	}
	if t.moving < maxMoves {
		for _, find := range []func() (step, bool){t.replicaOfTheDead, t.replicaThatIsMissing, t.replicaThatIsFenced, t.replicaThatMustGo} {
			if s, ok := find(); ok {
				return s, true
			}
		}
	}
	if !w.settled {
		return step{}, false
	}
	if t.moving < maxBalanceMove {
		if s, ok := t.betterPlace(); ok {
			return s, true
		}
	}
	return t.betterLead()
}

// leadThatMustGo transfers leadership away from servers that are drained, decommissioned or stopping. It does the same
// for servers with a full disk, if the shard can then accept pushes without the full disk.
func (t *tallies) leadThatMustGo() (step, bool) {
	for i := range t.w.shards {
		sh := &t.w.shards[i]
		n := t.node[sh.leader]
		if n == nil || sh.held || n.serves() && !(n.full && t.canDoWithout(sh)) {
			continue
		}
		if heir, ok := t.heir(sh); ok && !(n.serves() && t.node[heir].tight) {
			return step{shard: sh.id, from: sh.leader, to: heir, transfer: true}, true
		}
	}
	return step{}, false
}

// canDoWithout reports whether a majority of the replicas of sh is on servers with room on the disk. A replica stops
// when a write fails. Without such a majority the leader with the full disk must stay: it refuses pushes, which keeps
// all replicas running.
func (t *tallies) canDoWithout(sh *worldShard) bool {
	room := count(sh.replicas, func(r rowraft.NodeID) bool {
		n := t.node[r]
		return n != nil && n.up && !n.full && !slices.Contains(sh.fenced, r)
	})
	return 2*room > len(sh.replicas)
}

// heir returns the server that should lead sh next: of the servers with a replica, the one whose disk has most room,
// then the one that leads the fewest shards.
func (t *tallies) heir(sh *worldShard) (best rowraft.NodeID, ok bool) {
	better := func(a, b rowraft.NodeID) bool {
		return cmp.Or(cmp.Compare(t.node[a].cramped(), t.node[b].cramped()), cmp.Compare(t.leads[a], t.leads[b])) < 0
	}
	for _, r := range sh.replicas {
		n := t.node[r]
		if r == sh.leader || r == sh.leaving || n == nil || !n.serves() || slices.Contains(sh.fenced, r) {
			continue
		}
		if best == "" || better(r, best) {
			best = r
		}
	}
	return best, best != ""
}

// free returns the shards whose replicas may change now: they have a leader and no running move.
func (t *tallies) free() []*worldShard {
	var out []*worldShard
	for i := range t.w.shards {
		if sh := &t.w.shards[i]; !sh.moving && sh.leader != "" {
			out = append(out, sh)
		}
	}
	return out
}

// replicaOfTheDead rebuilds a replica of a dead server on another one. Shards with the fewest live replicas come first.
func (t *tallies) replicaOfTheDead() (step, bool) {
	return t.replicasOn(func(n *worldNode) bool { return n == nil || n.dead }, rowraftv1.MoveReason_MOVE_REASON_DEAD)
}

// replicaThatMustGo moves a replica away from a server that is decommissioned.
func (t *tallies) replicaThatMustGo() (step, bool) {
	return t.replicasOn(func(n *worldNode) bool { return n != nil && n.intent == clustermap.Decommission }, rowraftv1.MoveReason_MOVE_REASON_DECOMMISSION)
}

func (t *tallies) replicasOn(bad func(*worldNode) bool, reason rowraftv1.MoveReason) (best step, ok bool) {
	fewest := 0
	for _, sh := range t.free() {
		alive := count(sh.replicas, func(r rowraft.NodeID) bool { n := t.node[r]; return n != nil && n.up })
		for _, r := range sh.replicas {
			if !bad(t.node[r]) || ok && alive >= fewest {
				continue
			}
			if to, found := t.target(sh, r); found {
				best, fewest, ok = step{shard: sh.id, from: r, to: to, reason: reason}, alive, true
			}
		}
	}
	return best, ok
}

// replicaThatIsMissing adds a replica to a shard that has fewer than ReplicasPerShard, because the cluster began with
// fewer servers.
func (t *tallies) replicaThatIsMissing() (step, bool) {
	for _, sh := range t.free() {
		if len(sh.replicas) >= ReplicasPerShard {
			continue
		}
		if to, found := t.target(sh, ""); found {
			return step{shard: sh.id, to: to, reason: rowraftv1.MoveReason_MOVE_REASON_MISSING}, true
		}
	}
	return step{}, false
}

// replicaThatIsFenced replaces a replica that differs from the majority. It uses another server. If there is none, it
// removes the replica, and replicaThatIsMissing later adds one on the same server. world waits as long as for a dead
// server before it lists the replica as lost: its disk is the evidence, and operators need time to inspect it.
func (t *tallies) replicaThatIsFenced() (step, bool) {
	for _, sh := range t.free() {
		for _, r := range sh.lost {
			if !slices.Contains(sh.replicas, r) {
				continue
			}
			s := step{shard: sh.id, from: r, reason: rowraftv1.MoveReason_MOVE_REASON_FENCED}
			s.to, _ = t.target(sh, r)
			others := count(sh.replicas, func(o rowraft.NodeID) bool {
				n := t.node[o]
				return o != r && n != nil && n.up && !slices.Contains(sh.fenced, o)
			})
			if s.to != "" || others == len(sh.replicas)-1 && others > 1 {
				return s, true
			}
		}
	}
	return step{}, false
}

// target returns the best server for a replica of sh that leaves from: one in a zone with the fewest other replicas of
// sh, then the one with the fewest replicas.
func (t *tallies) target(sh *worldShard, from rowraft.NodeID) (best rowraft.NodeID, ok bool) {
	better := func(a, b rowraft.NodeID) int {
		return cmp.Or(cmp.Compare(t.crowd(sh, from, a), t.crowd(sh, from, b)), cmp.Compare(t.load[a], t.load[b]), cmp.Compare(t.leads[a], t.leads[b]), cmp.Compare(a, b))
	}
	for i := range t.w.nodes {
		n := &t.w.nodes[i]
		if !n.takes() || sh.on(n.id) || t.coming[n.id] >= maxMovesTo {
			continue
		}
		if best == "" || better(n.id, best) < 0 {
			best = n.id
		}
	}
	return best, best != ""
}

// crowd counts the replicas of sh in the zone of node, without those on from and on node.
func (t *tallies) crowd(sh *worldShard, from, node rowraft.NodeID) int {
	return count(sh.replicas, func(r rowraft.NodeID) bool {
		n := t.node[r]
		return r != from && r != node && n != nil && n.zone == t.node[node].zone
	})
}

// betterPlace returns the move that improves the balance most: over zones first, then over servers.
func (t *tallies) betterPlace() (step, bool) {
	var best step
	var gain [3]int
	for _, sh := range t.free() {
		if sh.joining != "" {
			continue
		}
		for _, from := range sh.replicas {
			if n := t.node[from]; n == nil || !n.serves() {
				continue
			}
			for i := range t.w.nodes {
				to := &t.w.nodes[i]
				if !to.takes() || sh.on(to.id) || t.coming[to.id] >= maxMovesTo {
					continue
				}
				zones := t.crowd(sh, from, from) - t.crowd(sh, from, to.id)
				even := t.load[from] - t.load[to.id] - 1
				if zones < 0 || zones == 0 && even <= 0 {
					continue
				}
				follower := 0 // moving a follower interrupts no pushes
				if from != sh.leader {
					follower = 1
				}
				if g := [3]int{zones, even, follower}; slices.Compare(g[:], gain[:]) > 0 {
					gain, best = g, step{shard: sh.id, from: from, to: to.id, reason: rowraftv1.MoveReason_MOVE_REASON_BALANCE}
					if zones > 0 {
						best.reason = rowraftv1.MoveReason_MOVE_REASON_ZONE
					}
				}
			}
		}
	}
	return best, best.to != ""
}

// betterLead returns a transfer that makes the number of leaders per server more even. A transfer to the final server
// may not be possible, because that one has no replica of a shard led by the first. betterLead therefore searches the
// shortest chain of transfers from a server to one that leads at least two shards fewer, and returns the chain's last
// transfer. The inner servers of the chain keep their number of leaders.
func (t *tallies) betterLead() (step, bool) {
	hops := make(map[rowraft.NodeID][]step) // possible transfers of leadership, by the server that leads now
	for i := range t.w.shards {
		sh := &t.w.shards[i]
		from := t.node[sh.leader]
		if from == nil || from.full || sh.moving || sh.held || !sh.rested { // leadThatMustGo handles full disks
			continue
		}
		for _, r := range sh.replicas {
			if n := t.node[r]; r != sh.leader && n != nil && n.takes() && !(n.tight && !from.tight) && !slices.Contains(sh.fenced, r) {
				hops[sh.leader] = append(hops[sh.leader], step{shard: sh.id, from: sh.leader, to: r, transfer: true})
			}
		}
	}
	var best step
	length, fewer := 0, 1
	for i := range t.w.nodes {
		from := t.w.nodes[i].id
		last, far := t.ways(from, hops)
		for j := range t.w.nodes {
			to := t.w.nodes[j].id
			hop, reached := last[to]
			if d := t.leads[from] - t.leads[to]; reached && d >= 2 && (length == 0 || far[to] < length || far[to] == length && d > fewer) {
				best, length, fewer = hop, far[to], d
			}
		}
	}
	return best, length > 0
}

// ways returns the last transfer and the length of the shortest chain from one server to each other one
// (breadth-first).
func (t *tallies) ways(from rowraft.NodeID, hops map[rowraft.NodeID][]step) (last map[rowraft.NodeID]step, far map[rowraft.NodeID]int) {
	last, far = make(map[rowraft.NodeID]step), map[rowraft.NodeID]int{from: 0}
	for queue := []rowraft.NodeID{from}; len(queue) > 0; queue = queue[1:] {
		for _, h := range hops[queue[0]] {
			if _, seen := far[h.to]; !seen {
				last[h.to], far[h.to] = h, far[queue[0]]+1
				queue = append(queue, h.to)
			}
		}
	}
	return last, far
}

// PlaceShards places n shards on nodes. Replica j of shard i is on node i+j; the nodes are in the order of their names,
// alternating between zones. So the numbers of replicas per node differ by at most one, and so do the numbers of first
// replicas, which should lead. Neighbours are in different zones where that is possible. newID generates replica ids.
func PlaceShards(nodes []clustermap.Node, n int, newID func() string) []clustermap.Shard {
	nodes = slices.SortedFunc(slices.Values(nodes), func(a, b clustermap.Node) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	nodes = zoneByZone(nodes)
	shards := make([]clustermap.Shard, n)
	for i := range shards {
		shards[i].ID = rowraft.ShardID(i)
		for j := range min(ReplicasPerShard, len(nodes)) {
			shards[i].Replicas = append(shards[i].Replicas, clustermap.Replica{
				ID: rowraft.ReplicaID(newID()), Node: nodes[(i+j)%len(nodes)].ID,
			})
		}
	}
	return shards
}

// zoneByZone orders the nodes so that the zones alternate.
func zoneByZone(nodes []clustermap.Node) (out []clustermap.Node) {
	turn := make(map[string]int) // nodes of a zone so far
	rank := make(map[rowraft.NodeID]int)
	for _, n := range nodes {
		zone := n.Label(clustermap.ZoneLabel)
		rank[n.ID] = turn[zone]
		turn[zone]++
	}
	if len(turn) < 2 {
		return nodes
	}
	return slices.SortedStableFunc(slices.Values(nodes), func(a, b clustermap.Node) int {
		return cmp.Or(cmp.Compare(rank[a.ID], rank[b.ID]), cmp.Compare(a.Label(clustermap.ZoneLabel), b.Label(clustermap.ZoneLabel)))
	})
}
