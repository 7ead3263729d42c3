package client

import (
	"context"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/route"
)

// A leader that this client cannot reach, and a follower can, stays the leader: the client
// asks the follower to forward its calls (docs/ops/security.md). It does so when the leader
// does not answer, or cannot be connected to, and the follower names it as the leader. A
// goroutine tries the leader itself again every relayProbe, and calls go there as soon as it answers.
const relayProbe = time.Second

// relay says that calls for leader go by node, which forwards them.
type relay struct{ leader, node rowraft.NodeID }

// relayBy has the calls of a shard for leader forwarded by node from now on.
func (c *Client) relayBy(shard rowraft.ShardID, leader, node rowraft.NodeID) {
	r, have := &relay{leader, node}, c.relays[shard].Load()
	if have != nil && *have == *r || !c.relays[shard].CompareAndSwap(have, r) {
		return
	}
	c.log.Info("the leader of the shard cannot be reached from here: a follower forwards", "shard", uint32(shard), "leader", string(leader), "by", string(node))
	err := c.spawn(func() {
		for c.relays[shard].Load() == r {
			if c.pause(c.ctx, new(route.Backoff), relayProbe) != nil {
				return
			}
			if _, err := c.askHint(c.ctx, leader, shard); err == nil {
				c.relays[shard].CompareAndSwap(r, nil)
			}
		}
	})
	if err != nil { // closed
		c.relays[shard].Store(nil)
	}
}

// relayOf returns who forwards for the leader that hint names; nil: no one.
func (c *Client) relayOf(shard rowraft.ShardID, hint *leaderHint) *relay {
	r := c.relays[shard].Load()
	if r != nil && r.leader != hint.node {
		c.relays[shard].CompareAndSwap(r, nil) // of an earlier leader
		return nil
	}
	return r
}

// endRelay ends what target chose for at.
func (c *Client) endRelay(shard rowraft.ShardID, at server) {
	if r := c.relays[shard].Load(); r != nil && r.leader == at.leader && r.node == at.node {
		c.relays[shard].CompareAndSwap(r, nil)
	}
}

// askHint asks a server which server leads a shard; "" if it does not know.
func (c *Client) askHint(ctx context.Context, node rowraft.NodeID, shard rowraft.ShardID) (rowraft.NodeID, error) {
	addr := c.addrOf(node)
	if addr == "" {
		return "", rowraft.Errorf(rowraft.CodeNoLeader, "server %s is not in the cluster map", node)
	}
	ctx, cancel := context.WithTimeout(ctx, slowTry) // it may be silent, too
	defer cancel()
	leaders, err := c.askMap(ctx, addr, 0)
	for _, l := range leaders {
		if l.Shard == uint32(shard) {
			return rowraft.NodeID(l.Node), nil
		}
	}
	return "", err
}

// findRelay looks, while a try at the leader is silent, whether the leader answers anything at
// all. If it does not, and another replica names it as the leader afterwards, that one is asked
// to forward. One goroutine of a shard looks at a time.
func (c *Client) findRelay(shard rowraft.ShardID, leader rowraft.NodeID) {
	if !c.probing[shard].CompareAndSwap(false, true) {
		return
	}
	defer c.probing[shard].Store(false)
	if _, err := c.askHint(c.ctx, leader, shard); err == nil || c.ctx.Err() != nil {
		return // it is slow
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
