package client

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Control makes a client's calls to the scheduler. Package client/jobs uses it; a program that pulls and
// pushes does not need it.
type Control struct {
	*lifetime
	conns    *route.Pool
	cluster  *cluster
	sessions *sessions
}

// Control returns the client's calls to the scheduler.
func (c *Client) Control() *Control { return c.control }

// Context ends when the client closes.
func (k *Control) Context() context.Context { return k.ctx }

// Go runs f on a goroutine that Client.Close waits for, or reports that Close has begun.
func (k *Control) Go(f func()) error { return k.spawn(f) }

// Conn returns a connection of the client to the server at addr.
func (k *Control) Conn(addr string) (grpc.ClientConnInterface, error) { return k.conns.Get(addr) }

// Call calls the scheduler's leader. It returns when a server has given a definite answer, or
// when ctx ends.
func (k *Control) Call(ctx context.Context, what string,
	call func(context.Context, grpc.ClientConnInterface) error) error {
	return k.CallLong(ctx, what, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		attempt, cancel := context.WithTimeout(ctx, 5*k.cluster.attempt)
		defer cancel()
		return call(attempt, conn)
	})
}

// CallLong is Call for a call that lasts as long as its work, such as a checkpoint: ctx alone bounds an attempt.
func (k *Control) CallLong(ctx context.Context, what string,
	call func(context.Context, grpc.ClientConnInterface) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(k.ctx, cancel)()
	for w := k.Walk(); ; {
		conn, err := k.Conn(w.Addr())
		if err == nil {
			err = call(ctx, conn)
		}
		if err == nil {
			return nil
		}
		if !w.Again(ctx, err) {
			return fmt.Errorf("%s: %w", what, k.ended(err))
		}
	}
}

// Walk visits the members of the scheduler, or all servers while the map names no member.
func (k *Control) Walk() *route.Walk {
	return &route.Walk{Layer: route.Control, AddrOf: k.cluster.addrOf, Places: func() (addrs []string) {
		if m := k.cluster.Load(); m != nil {
			for _, n := range m.Nodes {
				if n.Scheduler {
					addrs = append(addrs, n.Addr)
				}
			}
		}
		if len(addrs) == 0 {
			addrs = k.cluster.addrs()
		}
		return addrs
	}}
}

// Adopt makes the client open its sessions as the member id of a job, under the client id as. A worker that
// waits for other workers enters its job several times and adopts a newer identity each time. A client that
// has pushed cannot adopt an identity any more.
func (k *Control) Adopt(ctx context.Context, as rowraft.ClientID, id *rowraftv1.JobIdentity) error {
	return k.sessions.adopt(ctx, as, id)
}

// callCluster is Call for the service Cluster.
func (k *Control) callCluster(ctx context.Context, what string,
	call func(context.Context, rowraftv1.ClusterClient) error) error {
	return k.Call(ctx, what, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return call(ctx, rowraftv1.NewClusterClient(conn))
	})
}
