package node

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// A reply is in memory until its client has taken it, long after its handler has
// returned. So the handler leaves the ticket of a reply here, and whoever gives the
// reply to gRPC has it released when the transport lets go of the payload.
type replyTicket struct{ t *ticket }

type replyTicketKey struct{}

// keepTicket releases t when the reply to the call of ctx was taken.
func keepTicket(ctx context.Context, t *ticket) {
	if slot, ok := ctx.Value(replyTicketKey{}).(*replyTicket); ok {
		slot.t = t
		return
	}
	t.release() // not a call over the network
}

// countReplies is the interceptor of replies to pulls.
func (n *Node) countReplies(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	if info.FullMethod != rowraftv1.Table_Pull_FullMethodName {
		return h(ctx, req)
	}
	slot := &replyTicket{}
	reply, err := h(context.WithValue(ctx, replyTicketKey{}, slot), req)
	if slot.t == nil || err != nil {
		slot.t.release()
		return reply, err
	}
	return &rpc.Counted{Reply: reply.(*rowraftv1.PullReply), Taken: slot.t.release}, nil
}

// countedListener tells the admission which connections are open: what one of them has
// not taken when it ends is given back then, as gRPC does not say so.
type countedListener struct {
	net.Listener
	a *admission
}

func (l countedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	key := rpc.ConnKey(c.RemoteAddr())
	l.a.mu.Lock()
	l.a.conns[key] = make(map[*ticket]struct{})
	l.a.mu.Unlock()
	return &countedConn{Conn: c, ended: sync.OnceFunc(func() { l.a.connEnded(key) })}, nil
}

type countedConn struct {
	net.Conn
	ended func()
}

// NetConn is for quota.Authenticate.
func (c *countedConn) NetConn() net.Conn { return c.Conn }

func (c *countedConn) Close() error {
	err := c.Conn.Close()
	c.ended()
	return err
}

func (a *admission) connEnded(key any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	open := a.conns[key]
	delete(a.conns, key)
	for t := range open {
		a.releaseLocked(t)
	}
}
