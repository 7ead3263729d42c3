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
// nextStep looks at a world, which is what the leader of the metadata group knows of
// servers and shards at one moment, and returns the one change that is most urgent: a
// lead that must leave a server, a replica that must be rebuilt, one that must leave,
// one that stands better elsewhere, a lead that does. It is a pure function: whoever
// leads next sees the same world and wants the same. Each step for the sake of balance
// makes the world strictly better (fewer replicas of a shard in one zone, then more even
// servers; more even leads, or one hop nearer to that), so they end.

// world is what placement is decided on.
type world struct {
	nodes  []worldNode // that replicas can be on, by id
	shards []worldShard
	// settled allows steps for the sake of balance: every server is up, or is as good as
	// gone, and nothing else is under way.
	settled bool
}

// worldNode is a server.
type worldNode struct {
	id     rowraft.NodeID
	zone   string
	up     bool
	dead   bool // silent for so long that its replicas are rebuilt elsewhere
	ending bool // it has said that it stops
	full   bool // its disk has less room than its reserve: it refuses what it leads
	tight  bool // nearly that, or that
	intent clustermap.Intent
}

// serves reports whether n may lead shards and get replicas.
func (n *worldNode) serves() bool { return n.up && !n.ending && n.intent == clustermap.Serve }

// takes reports whether n may get replicas, and leads for the sake of balance, now.
func (n *worldNode) takes() bool { return n.serves() && !n.full }

// cramped is 0 for a disk with room, more for one with less.
func (n *worldNode) cramped() int {
	switch {
	case n.full:
		return 2
	case n.tight:
		return 1
	}
	return 0
}

// worldShard is a shard and what is done with it.
type worldShard struct {
	id       rowraft.ShardID
	replicas []rowraft.NodeID // that vote
	joining  rowraft.NodeID   // where a learner is; "" if nowhere
	leaving  rowraft.NodeID   // whose replica a running move takes; "" if none
	moving   bool
	leader   rowraft.NodeID   // that has told so and is up; "" if none
	rested   bool             // it has led for a while: the lead may move for the sake of balance
	held     bool             // a transfer was tried a moment ago
	fenced   []rowraft.NodeID // that serve nothing and have no vote
	lost     []rowraft.NodeID // of the fenced, those whose disk was kept for long enough
}

// on reports whether sh has a replica on node, or will have.
func (sh *worldShard) on(node rowraft.NodeID) bool {
	return slices.Contains(sh.replicas, node) || sh.joining == node
}

// step is one change: of the lead, if transfer is set, else of replicas. Without from a
// replica is added, without to one is removed.
type step struct {
	shard    rowraft.ShardID
	from, to rowraft.NodeID
	transfer bool
	reason   rowraftv1.MoveReason
}

// How many replicas move at a time by themselves: each is a snapshot through a network
// and two disks that pushes need, too.
const (
	maxMoves       = 4
	maxMovesTo     = 2 // one server
	maxBalanceMove = 2
)

// tallies are sums over a world.
type tallies struct {
	w      *world
	node   map[rowraft.NodeID]*worldNode
	load   map[rowraft.NodeID]int // replicas, once the moves that run have ended
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

// nextStep returns what should be done next, if anything.
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

// leadThatMustGo takes leads off servers that are drained, leave, or stop, and off those
// whose disk is full, if pushes can go on without filling it.
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

// canDoWithout says that a majority of the replicas of sh is on servers with room: those
// that have none end when a write fails. Where it is not, the leader refuses pushes, and
// so keeps all of them alive.
func (t *tallies) canDoWithout(sh *worldShard) bool {
	room := count(sh.replicas, func(r rowraft.NodeID) bool {
		n := t.node[r]
		return n != nil && n.up && !n.full && !slices.Contains(sh.fenced, r)
	})
	return 2*room > len(sh.replicas)
}

// heir is the server with a replica of sh that should lead it next: one whose disk has
// room, and of those the one with the fewest leads.
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

// free lists the shards whose replicas may change now: those that have a leader, and
// no change under way.
func (t *tallies) free() []*worldShard {
	var out []*worldShard
	for i := range t.w.shards {
		if sh := &t.w.shards[i]; !sh.moving && sh.leader != "" {
			out = append(out, sh)
		}
	}
	return out
}

// replicaOfTheDead rebuilds a replica elsewhere, of the shard with the fewest others first.
func (t *tallies) replicaOfTheDead() (step, bool) {
	return t.replicasOn(func(n *worldNode) bool { return n == nil || n.dead }, rowraftv1.MoveReason_MOVE_REASON_DEAD)
}

// replicaThatMustGo moves a replica off a server that is decommissioned.
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

// replicaThatIsMissing adds one to a shard that has too few: the cluster began with
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

// replicaThatIsFenced replaces one that differs from the majority: on another server,
// or, where there is none, in its own place, as the one that is missing afterwards. Its
// disk, the evidence, was there to be looked at for as long as a dead server is waited for.
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

// target is the best server for a replica of sh that leaves from: in another zone than
// the others are in, then with the fewest replicas.
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

// crowd counts the replicas of sh, but that on from, in the zone of node.
func (t *tallies) crowd(sh *worldShard, from, node rowraft.NodeID) int {
	return count(sh.replicas, func(r rowraft.NodeID) bool {
		n := t.node[r]
		return r != from && r != node && n != nil && n.zone == t.node[node].zone
	})
}

// betterPlace is the move that makes the world most even: over zones, then over servers.
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
				follower := 0 // its move stops nobody
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

// betterLead is the transfer that makes leads more even: the last hop of the shortest
// way from a server with many to one with at least two fewer. Hops in the middle of a way
// change nothing but its length.
func (t *tallies) betterLead() (step, bool) {
	hops := make(map[rowraft.NodeID][]step) // leads that a server can give, and to whom
	for i := range t.w.shards {
		sh := &t.w.shards[i]
		from := t.node[sh.leader]
		if from == nil || from.full || sh.moving || sh.held || !sh.rested { // leadThatMustGo knows of full ones
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

// ways are the last hops of the shortest ways from a server to all others, and their
// lengths.
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

// PlaceShards spreads n shards over nodes: replica j of shard i is on node i+j
// in the order of names, zone after zone, so that every node has as many replicas, and as
// many first ones (which should lead), as any other, give or take one, and neighbours are
// in different zones where that can be. newID draws replica ids.
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

// zoneByZone takes one node of each zone in turn.
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
