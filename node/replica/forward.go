package replica

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/node/admit"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/wire"
)

// Forward passes a call of the table service to the leader of its shard, if the caller requests that
// (because it cannot reach the leader) and this server knows the leader. All other calls go to this
// server's own replica. The leader stays the leader. Forward is an interceptor of the server.
//
// Two admissions count the memory of such a call: that of this server, from the arrival of the request and
// for the reply, and that of the leader.
func (h *Host) Forward(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handle grpc.UnaryHandler) (any, error) {
	reply := rpc.ForwardReply(ctx, info.FullMethod)
	if reply == nil {
		return handle(ctx, req)
	}
	shard, ok := req.(interface{ GetShard() uint32 })
	if !ok {
		return h.forwardToScheduler(ctx, req, reply, info, handle)
	}
	if p, ok := req.(*rowraftv1.PullRequest); ok && p.Mode == rowraftv1.ReadMode_READ_MODE_BOUNDED {
		return handle(ctx, req)
	}
	r := h.replica(rowraft.ShardID(shard.GetShard()))
	if r == nil || r.maySpeak() != nil {
		return handle(ctx, req)
	}
	conn, leader, err := h.leaderConn(r.group)
	if err != nil {
		return nil, err
	}
	if conn == nil {
		return handle(ctx, req)
	}
	size := 0
	if p, ok := req.(interface{ GetPayload() []byte }); ok {
		size = len(p.GetPayload())
	}
	t, err := h.opts.Admission.Admit(ctx, r.shard, admit.Push, wire.PartHeaderSize+size)
	if err != nil {
		return nil, err
	}
	defer t.Release()
	out, cancel := context.WithCancel(h.onBehalf(ctx))
	defer cancel()
	watch := time.AfterFunc(leaderPoll, func() { cancelWhenLedBy(out, r.group, cancel, leader) })
	defer watch.Stop()
	if err := conn.Invoke(out, info.FullMethod, req, reply); err != nil {
		return nil, err
	}
	pulled, ok := reply.(*rowraftv1.PullReply)
	if !ok {
		return reply, nil
	}
	held, err := h.opts.Admission.Admit(ctx, r.shard, admit.Pull, len(pulled.Payload))
	if err != nil {
		rpc.Pool.Release(pulled.Payload)
		return nil, err
	}
	admit.KeepUntilTaken(ctx, held)
	return reply, nil
}

// forwardToScheduler is Forward for a call to the scheduler's leader.
func (h *Host) forwardToScheduler(ctx context.Context, req, reply any, info *grpc.UnaryServerInfo,
	handle grpc.UnaryHandler) (any, error) {
	g := h.opts.Meta()
	if g == nil {
		return handle(ctx, req)
	}
	conn, _, err := h.leaderConn(g)
	if err != nil {
		return nil, err
	}
	if conn == nil {
		return handle(ctx, req)
	}
	if err := conn.Invoke(h.onBehalf(ctx), info.FullMethod, req, reply); err != nil {
		return nil, err
	}
	return reply, nil
}

// onBehalf returns ctx for a call on behalf of its caller.
func (h *Host) onBehalf(ctx context.Context) context.Context {
	return rpc.OnBehalf(rpc.WithCluster(ctx, h.Map().Cluster))
}

// leaderConn returns a connection to the leader of a group; nil if this server leads, or the leader is not
// known.
func (h *Host) leaderConn(g *raftstore.Group) (*grpc.ClientConn, rowraft.NodeID, error) {
	m := h.Map()
	leader, _, me := g.Leader()
	if m == nil || me {
		return nil, "", nil
	}
	node, ok := m.Node(leader)
	if !ok {
		return nil, "", nil
	}
	conn, err := h.opts.Conns.Get(node.Addr)
	return conn, leader, err
}
