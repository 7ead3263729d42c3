package placement

import (
	"slices"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// balanceReplicas returns the move that improves the balance most: over zones first, then over servers.
func (t *totals) balanceReplicas() (Step, bool) {
	var best Step
	var gain [3]int
	for _, sh := range t.free() {
		if sh.Joining != "" {
			continue
		}
		for _, from := range sh.Replicas {
			if n := t.node[from]; n == nil || !n.serves() {
				continue
			}
			for i := range t.w.Nodes {
				to := &t.w.Nodes[i]
				if !to.accepts() || sh.on(to.ID) || t.coming[to.ID] >= maxMovesTo {
					continue
				}
				zones := t.inZone(sh, from, from) - t.inZone(sh, from, to.ID)
				// A move lowers one load and raises the other. With a difference of one it would only swap them, and the next step
				// would swap them back.
				even := t.load[from] - t.load[to.ID] - 1
				if zones < 0 || zones == 0 && even <= 0 {
					continue
				}
				follower := 0 // moving a follower interrupts no pushes
				if from != sh.Leader {
					follower = 1
				}
				if g := [3]int{zones, even, follower}; slices.Compare(g[:], gain[:]) > 0 {
					gain, best = g, Step{Shard: sh.ID, From: from, To: to.ID, Reason: rowraftv1.MoveReason_MOVE_REASON_BALANCE}
					if zones > 0 {
						best.Reason = rowraftv1.MoveReason_MOVE_REASON_ZONE
					}
				}
			}
		}
	}
	return best, best.To != ""
}

// balanceLeaders returns a transfer that makes the number of leaders per server more even. A transfer to the final
// server may not be possible, because that one has no replica of a shard led by the first. balanceLeaders therefore
// searches the shortest chain of transfers from a server to one that leads at least two shards fewer, and returns the
// chain's last transfer. The inner servers of the chain keep their number of leaders.
func (t *totals) balanceLeaders() (Step, bool) {
	hops := make(map[rowraft.NodeID][]Step) // possible transfers of leadership, by the server that leads now
	for i := range t.w.Shards {
		sh := &t.w.Shards[i]
		from := t.node[sh.Leader]
		if from == nil || from.Full || sh.Moving || sh.LeadTried || !sh.LedLong { // forcedTransfer handles full disks
			continue
		}
		for _, r := range sh.Replicas {
			if n := t.node[r]; r != sh.Leader && n != nil && n.accepts() && !(n.NearlyFull && !from.NearlyFull) &&
				!slices.Contains(sh.Fenced, r) {
				hops[sh.Leader] = append(hops[sh.Leader], Step{Shard: sh.ID, From: sh.Leader, To: r, Transfer: true})
			}
		}
	}
	var best Step
	length, fewer := 0, 1
	for i := range t.w.Nodes {
		from := t.w.Nodes[i].ID
		last, far := t.chains(from, hops)
		for j := range t.w.Nodes {
			to := t.w.Nodes[j].ID
			hop, reached := last[to]
			if d := t.leads[from] - t.leads[to]; reached && d >= 2 && (length == 0 || far[to] < length || far[to] == length &&
				d > fewer) {
				best, length, fewer = hop, far[to], d
			}
		}
	}
	return best, length > 0
}

// chains returns the last transfer and the length of the shortest chain from one server to each other one
// (breadth-first).
func (t *totals) chains(from rowraft.NodeID,
	hops map[rowraft.NodeID][]Step) (last map[rowraft.NodeID]Step, far map[rowraft.NodeID]int) {
	last, far = make(map[rowraft.NodeID]Step), map[rowraft.NodeID]int{from: 0}
	for queue := []rowraft.NodeID{from}; len(queue) > 0; queue = queue[1:] {
		for _, h := range hops[queue[0]] {
			if _, seen := far[h.To]; !seen {
				last[h.To], far[h.To] = h, far[queue[0]]+1
				queue = append(queue, h.To)
			}
		}
	}
	return last, far
}
