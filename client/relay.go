package client

import (
	"context"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/route"
)

// relayProbe is the interval at which a goroutine tries an unreachable leader again.
//
// A leader that this client cannot reach, but a follower can, stays the leader. The client then asks the
// follower to forward its calls (docs/ops/security.md). It does so when the leader does not answer, or
// refuses connections, and the follower names it as the leader. Calls return to the leader as soon as a
// probe succeeds.
const relayProbe = time.Second

// relay means that node forwards the calls for leader.
type relay struct{ leader, node rowraft.NodeID }

// relayBy makes node forward the calls of a shard for leader from now on.
func (r *router) relayBy(shard rowraft.ShardID, leader, node rowraft.NodeID) {
	at := r.leaders.at(shard)
	by, have := &relay{leader, node}, at.relay.Load()
	if have != nil && *have == *by || !at.relay.CompareAndSwap(have, by) {
		return
	}
	r.log.Info("the leader of the shard cannot be reached from here: a follower forwards", "shard", uint32(shard),
		"leader", string(leader), "by", string(node))
	err := r.spawn(func() {
		for at.relay.Load() == by {
			if r.pause(r.ctx, new(route.Backoff), relayProbe) != nil {
				return
			}
			if _, err := r.askHint(r.ctx, leader, shard); err == nil {
				at.relay.CompareAndSwap(by, nil)
			}
		}
	})
	if err != nil { // the client is closed: no goroutine would end the relay
		at.relay.Store(nil)
	}
}

// relayOf returns the relay for the leader that hint names; nil if there is none.
func (r *router) relayOf(shard rowraft.ShardID, hint *leaderHint) *relay {
	by := r.leaders.at(shard).relay.Load()
	if by != nil && by.leader != hint.node {
		r.leaders.at(shard).relay.CompareAndSwap(by, nil) // the relay of an earlier leader
		return nil
	}
	return by
}

// endRelay removes the relay that target chose for at.
func (r *router) endRelay(shard rowraft.ShardID, at server) {
	if by := r.leaders.at(shard).relay.Load(); by != nil && by.leader == at.leader && by.node == at.node {
		r.leaders.at(shard).relay.CompareAndSwap(by, nil)
	}
}

// askHint asks a server for the leader of a shard; "" if the server does not know it.
func (r *router) askHint(ctx context.Context, node rowraft.NodeID, shard rowraft.ShardID) (rowraft.NodeID, error) {
	addr := r.cluster.addrOf(node)
	if addr == "" {
		return "", rowraft.Errorf(rowraft.CodeNoLeader, "server %s is not in the cluster map", node)
	}
	ctx, cancel := context.WithTimeout(ctx, slowTry) // this server may be silent, too
	defer cancel()
	leaders, err := r.cluster.ask(ctx, addr, 0)
	for _, l := range leaders {
		if l.Shard == uint32(shard) {
			return rowraft.NodeID(l.Node), nil
		}
	}
	return "", err
}

// findRelay runs while a try at the leader is silent. It asks the leader for a hint; if the leader answers,
// it is only slow. If it does not answer, and another replica still names it as the leader, that replica
// becomes the relay. At most one goroutine per shard runs findRelay.
func (r *router) findRelay(shard rowraft.ShardID, leader rowraft.NodeID) {
	if !r.leaders.at(shard).probing.CompareAndSwap(false, true) {
		return
	}
	defer r.leaders.at(shard).probing.Store(false)
	if _, err := r.askHint(r.ctx, leader, shard); err == nil || r.ctx.Err() != nil {
		return // the leader answers: it is slow
	}
	m := r.cluster.Load()
	if int(shard) >= len(m.Shards) {
		return
	}
	for _, replica := range m.Shards[shard].Replicas {
		if replica.Node == leader {
			continue
		}
		if named, err := r.askHint(r.ctx, replica.Node, shard); err == nil && named == leader {
			r.relayBy(shard, leader, replica.Node)
			return
		}
	}
}
