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
func (c *Client) relayBy(shard rowraft.ShardID, leader, node rowraft.NodeID) {
	r, have := &relay{leader, node}, c.shards.at(shard).relay.Load()
	if have != nil && *have == *r || !c.shards.at(shard).relay.CompareAndSwap(have, r) {
		return
	}
	c.log.Info("the leader of the shard cannot be reached from here: a follower forwards", "shard", uint32(shard), "leader", string(leader), "by", string(node))
	err := c.spawn(func() {
		for c.shards.at(shard).relay.Load() == r {
			if c.pause(c.ctx, new(route.Backoff), relayProbe) != nil {
				return
			}
			if _, err := c.askHint(c.ctx, leader, shard); err == nil {
				c.shards.at(shard).relay.CompareAndSwap(r, nil)
			}
		}
	})
	if err != nil { // the client is closed: no goroutine would end the relay
		c.shards.at(shard).relay.Store(nil)
	}
}

// relayOf returns the relay for the leader that hint names; nil if there is none.
func (c *Client) relayOf(shard rowraft.ShardID, hint *leaderHint) *relay {
	r := c.shards.at(shard).relay.Load()
	if r != nil && r.leader != hint.node {
		c.shards.at(shard).relay.CompareAndSwap(r, nil) // the relay of an earlier leader
		return nil
	}
	return r
}

// endRelay removes the relay that target chose for at.
func (c *Client) endRelay(shard rowraft.ShardID, at server) {
	if r := c.shards.at(shard).relay.Load(); r != nil && r.leader == at.leader && r.node == at.node {
		c.shards.at(shard).relay.CompareAndSwap(r, nil)
	}
}

// askHint asks a server for the leader of a shard; "" if the server does not know it.
func (c *Client) askHint(ctx context.Context, node rowraft.NodeID, shard rowraft.ShardID) (rowraft.NodeID, error) {
	addr := c.addrOf(node)
	if addr == "" {
		return "", rowraft.Errorf(rowraft.CodeNoLeader, "server %s is not in the cluster map", node)
	}
	ctx, cancel := context.WithTimeout(ctx, slowTry) // this server may be silent, too
	defer cancel()
	leaders, err := c.askMap(ctx, addr, 0)
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
func (c *Client) findRelay(shard rowraft.ShardID, leader rowraft.NodeID) {
	if !c.shards.at(shard).probing.CompareAndSwap(false, true) {
		return
	}
	defer c.shards.at(shard).probing.Store(false)
	if _, err := c.askHint(c.ctx, leader, shard); err == nil || c.ctx.Err() != nil {
		return // the leader answers: it is slow
	}
	m := c.cluster.Load()
	if int(shard) >= len(m.Shards) {
		return
	}
	for _, r := range m.Shards[shard].Replicas {
		if r.Node == leader {
			continue
		}
		if named, err := c.askHint(c.ctx, r.Node, shard); err == nil && named == leader {
			c.relayBy(shard, leader, r.Node)
			return
		}
	}
}
