package scheduler

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// leaderOf returns the node that probably leads sh.
func (s *Scheduler) leaderOf(sh clustermap.Shard) rowraft.NodeID {
	for _, h := range s.hints() {
		if h.Shard == sh.ID {
			return h.Node
		}
	}
	return sh.Replicas[0].Node
}

// walk returns the order in which to look for the leader of sh: the probable leader, then replicas and learners. Its
// places are node ids.
func (s *Scheduler) walk(sh clustermap.Shard) *route.Walk {
	places := []string{string(s.leaderOf(sh))}
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
func (s *Scheduler) onLeader(ctx context.Context, sh clustermap.Shard, patience time.Duration, fn func(*grpc.ClientConn) error) error {
	giveUp := time.Now().Add(patience)
	for w := s.walk(sh); ; {
		err := s.onNode(rowraft.NodeID(w.Addr()), fn)
		if err == nil || time.Now().After(giveUp) || !w.Again(ctx, err) {
			return err
		}
	}
}

// onNode calls fn with a connection to a node.
func (s *Scheduler) onNode(node rowraft.NodeID, fn func(*grpc.ClientConn) error) error {
	addr := s.addrOf(node)
	if addr == "" {
		return rowraft.Errorf(rowraft.CodeNoLeader, "the address of node %s is unknown", node)
	}
	conn, err := s.conns.Get(addr)
	if err != nil {
		return err
	}
	return fn(conn)
}

// callReplicas calls the Replicas service of a node.
func (s *Scheduler) callReplicas(ctx context.Context, node rowraft.NodeID, limit time.Duration, fn func(context.Context, rowraftv1.ReplicasClient) error) error {
	return s.onNode(node, func(conn *grpc.ClientConn) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return fn(ctx, rowraftv1.NewReplicasClient(conn))
	})
}
