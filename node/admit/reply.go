package admit

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// replyTicket carries the ticket of a reply from the handler to CountReplies. A reply uses memory until its
// client has read it, long after its handler has returned. CountReplies releases the ticket when the
// transport frees the payload.
type replyTicket struct{ t *Ticket }

type replyTicketKey struct{}

// KeepUntilTaken releases t after the client has read the reply to the call of ctx.
func KeepUntilTaken(ctx context.Context, t *Ticket) {
	if slot, ok := ctx.Value(replyTicketKey{}).(*replyTicket); ok {
		slot.t = t
		return
	}
	t.Release() // not a call over the network
}

// CountReplies is the interceptor for replies to pulls.
func CountReplies(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	switch info.FullMethod {
	case rowraftv1.Table_Pull_FullMethodName, rowraftv1.Replicas_CopyRows_FullMethodName,
		rowraftv1.Replicas_HotRows_FullMethodName:
	default:
		return h(ctx, req)
	}
	c, err := CountReply(ctx, func(ctx context.Context) (*rowraftv1.PullReply, error) {
		reply, err := h(ctx, req)
		if err != nil {
			return nil, err
		}
		return reply.(*rowraftv1.PullReply), nil
	})
	if err != nil {
		return nil, err
	}
	return &c, nil
}

// CountReply calls pull, and returns its reply with the ticket that pull has for it.
func CountReply(ctx context.Context,
	pull func(context.Context) (*rowraftv1.PullReply, error)) (c rpc.Counted, err error) {
	slot := &replyTicket{}
	c.Reply, err = pull(context.WithValue(ctx, replyTicketKey{}, slot))
	switch {
	case err != nil:
		slot.t.Release()
	case slot.t != nil:
		c.Taken = slot.t.Release
	}
	return c, err
}

// Listener returns l, and counts the replies of its connections in a.
func (a *Admission) Listener(l net.Listener) net.Listener { return countedListener{l, a} }

// countedListener tracks open connections. When a connection ends, the admission releases the tickets of
// its unread replies, because gRPC does not report those.
type countedListener struct {
	net.Listener
	a *Admission
}

func (l countedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	key := rpc.ConnKey(c.RemoteAddr())
	l.a.mu.Lock()
	l.a.conns[key] = make(map[*Ticket]struct{})
	l.a.mu.Unlock()
	return &countedConn{Conn: c, ended: sync.OnceFunc(func() { l.a.connEnded(key) })}, nil
}

type countedConn struct {
	net.Conn
	ended func()
}

// NetConn makes quota.Authenticate find the connection below.
func (c *countedConn) NetConn() net.Conn { return c.Conn }

func (c *countedConn) Close() error {
	err := c.Conn.Close()
	c.ended()
	return err
}

func (a *Admission) connEnded(key any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	open := a.conns[key]
	delete(a.conns, key)
	for t := range open {
		a.releaseLocked(t)
	}
}
