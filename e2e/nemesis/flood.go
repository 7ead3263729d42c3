package nemesis

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// sessionFlood opens as many sessions in a shard as it remembers, of clients that never
// push, while the load goes on, and one more than one owner may have. A client that comes
// then finds room nevertheless: those of the flood make some.
func sessionFlood(ctx context.Context, a *act) error {
	shard, l, err := a.leader(ctx)
	if err != nil {
		return err
	}
	a.target = l.Server
	ctx, cancel := context.WithTimeout(ctx, guestPatience)
	defer cancel()
	conn, err := rpc.Dial(l.Server, nil, func(ctx context.Context, name string) (net.Conn, error) {
		return a.Cluster.Connect(ctx, name, false)
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	stub := rowraftv1.NewTableClient(conn)
	var opened, full atomic.Int64
	one, base := a.rng.Uint64(), a.rng.Uint64()
	var g errgroup.Group
	g.SetLimit(64)
	for n := range uint64(rowraft.MaxSessions + 64) {
		owner := base + n
		if n%2 == 0 {
			owner = one // half of them have one owner
		}
		g.Go(func() error {
			var id rowraft.ClientID
			binary.BigEndian.PutUint64(id[:], owner)
			binary.BigEndian.PutUint64(id[8:], base^n)
			q := &rowraftv1.OpenSessionRequest{Shard: uint32(shard), ClientId: id[:], Incarnation: 1}
			reply, err := stub.OpenSession(ctx, q)
			if err == nil {
				q.Ticket = reply.GetTicket()
				_, err = stub.OpenSession(ctx, q)
			}
			switch code := rowraft.CodeOf(err); {
			case err == nil:
				opened.Add(1)
			case code == rowraft.CodeOverloaded:
				full.Add(1)
			case code == rowraft.CodeInternal:
				return fmt.Errorf("VIOLATION: a session of a flood ends in an internal error: %w", err)
			}
			return nil // the leader may be away by now
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	c, err := a.Load.Guest(ctx, floodGuest, client.Options{})
	if err != nil {
		return err
	}
	defer c.Close()
	for range 3 {
		if _, err := c.Push(ctx, a.allRows()); err != nil {
			return fmt.Errorf("a new client among %d sessions of a flood: %w", opened.Load(), err)
		}
	}
	if opened.Load() >= rowraft.MaxSessions/2 && full.Load() > 0 {
		a.saw("%d sessions opened, %d refused, a new client pushed", opened.Load(), full.Load())
	}
	return nil
}
