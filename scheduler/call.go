package scheduler

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/diagnosis"
)

// probableLeader returns the node that probably leads sh.
func (g *group) probableLeader(sh clustermap.Shard) rowraft.NodeID {
	for _, h := range g.hints() {
		if h.Shard == sh.ID {
			return h.Node
		}
	}
	return sh.Replicas[0].Node
}

// walk returns the order in which to look for the leader of sh: the probable leader, then replicas and learners. Its
// places are node ids.
func (g *group) walk(sh clustermap.Shard) *route.Walk {
	places := []string{string(g.probableLeader(sh))}
	for _, r := range slices.Concat(sh.Replicas, sh.Learners) {
		if !slices.Contains(places, string(r.Node)) {
			places = append(places, string(r.Node))
		}
	}
	return &route.Walk{
		Layer: route.Control, Places: func() []string { return places },
		AddrOf: func(id rowraft.NodeID) string { return string(id) },
	}
}

// onLeader calls fn with a connection to the leader of sh. It follows hints and waits for elections. It ends when fn
// returns nil or an error that another attempt would not change, when ctx ends, or when patience has passed at the end
// of an attempt.
func (g *group) onLeader(ctx context.Context, sh clustermap.Shard, patience time.Duration,
	fn func(*grpc.ClientConn) error) error {
	giveUp := time.Now().Add(patience)
	for w := g.walk(sh); ; {
		err := g.onNode(rowraft.NodeID(w.Addr()), fn)
		if err == nil || time.Now().After(giveUp) || !w.Again(ctx, err) {
			return err
		}
	}
}

// onNode calls fn with a connection to a node.
func (g *group) onNode(node rowraft.NodeID, fn func(*grpc.ClientConn) error) error {
	addr := g.addrOf(node)
	if addr == "" {
		return rowraft.Errorf(rowraft.CodeNoLeader, "the address of server %s is unknown", node)
	}
	conn, err := g.conns.Get(addr)
	if err != nil {
		return err
	}
	return fn(conn)
}

// callReplicas calls the Replicas service of a node.
func (g *group) callReplicas(ctx context.Context, node rowraft.NodeID, limit time.Duration,
	fn func(context.Context, rowraftv1.ReplicasClient) error) error {
	return g.onNode(node, func(conn *grpc.ClientConn) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return fn(ctx, rowraftv1.NewReplicasClient(conn))
	})
}

// transferLeader asks the leader of a shard to transfer the leadership to another node; "": to any voter.
func (g *group) transferLeader(ctx context.Context, shard rowraft.ShardID, leader, to rowraft.NodeID) error {
	return g.callReplicas(ctx, leader, changeTimeout, func(ctx context.Context, a rowraftv1.ReplicasClient) error {
		_, err := a.TransferLeader(ctx, &rowraftv1.TransferLeaderRequest{Shard: uint32(shard), ToNode: string(to)})
		return err
	})
}

// hints merges the leaders from the heartbeats and from this server's own replicas. The hint with the highest term
// wins.
func (g *group) hints() []LeaderHint {
	best := make(map[rowraft.ShardID]LeaderHint)
	add := func(h LeaderHint) {
		if old, ok := best[h.Shard]; h.Node != "" && (!ok || h.Term > old.Term) {
			best[h.Shard] = h
		}
	}
	g.soft.mu.Lock()
	for node, b := range g.soft.beats {
		for _, r := range b.replicas {
			h := LeaderHint{Shard: rowraft.ShardID(r.GetShard()), Node: rowraft.NodeID(r.GetLeaderNode()),
				Term: rowraft.Term(r.GetTerm())}
			if r.GetRole() == diagnosis.Leader {
				h.Node = node
			}
			add(h)
		}
	}
	g.soft.mu.Unlock()
	if g.opts.Hints != nil {
		for _, h := range g.opts.Hints() {
			add(h)
		}
	}
	out := make([]LeaderHint, 0, len(best))
	for _, h := range best {
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b LeaderHint) int { return cmp.Compare(a.Shard, b.Shard) })
	return out
}
