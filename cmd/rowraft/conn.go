package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// helloTimeout is how long a server may take to say what it knows before the next one is
// asked; a test may wait for longer.
var helloTimeout = 2 * time.Second

// cluster reaches the leader of the metadata group through any server.
type cluster struct {
	tls       *certs.Source
	endpoints []string // as given, then those the servers told of
	conns     map[string]*grpc.ClientConn
}

func (g *globals) connect() (*cluster, error) {
	if len(g.endpoints) == 0 {
		return nil, cli.Usagef("no endpoints: give --endpoints or ROWRAFT_ENDPOINTS")
	}
	conf, err := g.clientTLS()
	if err != nil {
		return nil, err
	}
	return &cluster{tls: conf, endpoints: slices.Clone(g.endpoints), conns: make(map[string]*grpc.ClientConn)}, nil
}

// clientTLS are the certificates of calls; nil is plaintext.
func (g *globals) clientTLS() (*certs.Source, error) {
	switch {
	case g.insecure && !g.tls.IsZero():
		return nil, cli.Usagef("both certificates and --insecure are given: want one of them")
	case !g.insecure && g.tls.IsZero():
		return nil, cli.Usagef("no certificates: give --cert, --key and --cacert, or --insecure for servers that run with it")
	}
	return g.tls.OpenToCall(nil)
}

func (c *cluster) close() error {
	var errs []error
	for _, conn := range c.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

func (c *cluster) dial(addr string) (rowraftv1.ClusterClient, error) {
	conn, err := c.conn(addr)
	if err != nil {
		return nil, err
	}
	return rowraftv1.NewClusterClient(conn), nil
}

func (c *cluster) conn(addr string) (*grpc.ClientConn, error) {
	conn := c.conns[addr]
	if conn == nil {
		var err error
		if conn, err = rpc.Dial(addr, c.tls, nil); err != nil {
			return nil, cli.Usagef("address %q: %w", addr, err)
		}
		c.conns[addr] = conn
	}
	return conn, nil
}

// forget closes the connection to addr: the next one must not be told how this one ended.
func (c *cluster) forget(addr string) error {
	err := c.conns[addr].Close()
	delete(c.conns, addr)
	return err
}

// newestMap is the newest map that any of the servers at hand knows, with what
// that server knows of leaders. It works without the scheduler.
func (c *cluster) newestMap(ctx context.Context) (best *rowraftv1.GetMapReply, err error) {
	var silent []string
	heard, slow := false, false
	for _, addr := range c.endpoints {
		client, err := c.dial(addr)
		if err != nil {
			return nil, err
		}
		attempt, cancel := context.WithTimeout(ctx, helloTimeout)
		asked := time.Now()
		reply, err := client.GetMap(attempt, &rowraftv1.GetMapRequest{})
		cancel()
		heard = heard || err == nil
		switch {
		case err != nil:
			silent = append(silent, fmt.Sprintf("%s (%v)", addr, err))
			slow = slow || tookLong(asked, err)
			if err := c.forget(addr); err != nil {
				return nil, err
			}
		case reply.GetMap().GetVersion() >= best.GetMap().GetVersion():
			best = reply
		}
	}
	if len(best.GetMap().GetShards()) > 0 {
		return best, nil
	}
	err = rowraft.Errorf(rowraft.CodeNoLeader, "no server knows of any shard; no answer from: %s", orNone(silent))
	if heard || slow {
		return nil, err
	}
	return nil, &unreachableError{err}
}

// awaitMap is newestMap, which it asks for until ctx ends while an answer may come.
func (c *cluster) awaitMap(ctx context.Context) (m *rowraftv1.GetMapReply, err error) {
	err = insist(ctx, true, func() error {
		m, err = c.newestMap(ctx)
		return err
	})
	return m, err
}

// tookLong tells of a call which failed whether the server may stand still for a moment.
func tookLong(asked time.Time, err error) bool {
	return rowraft.CodeOf(err) == rowraft.CodeDeadline || time.Since(asked) >= rpc.ConnectTimeout
}

// call calls fn on the leader of the metadata group. While there is none it
// waits until ctx ends; it calls again after an error that left nothing behind,
// or, if again is true, after any that may pass.
func (c *cluster) call(ctx context.Context, again bool, fn func(context.Context, rowraftv1.ClusterClient) error) error {
	return insist(ctx, again, func() error { return c.callOnce(ctx, fn) })
}

// insist tries until it succeeds, ctx ends, or the error will not pass: not one server listens,
// or, unless again is true, the try may have left something behind.
func insist(ctx context.Context, again bool, try func() error) error {
	wait := 20 * time.Millisecond
	for {
		err := try()
		code := rowraft.CodeOf(err)
		unreachable := errors.As(err, new(*unreachableError))
		if err == nil || unreachable || !code.Retryable() || code.MaybeApplied() && !again {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (gave up: %w)", err, ctx.Err())
		case <-time.After(wait):
			wait = min(2*wait, 500*time.Millisecond)
		}
	}
}

func (c *cluster) callOnce(ctx context.Context, fn func(context.Context, rowraftv1.ClusterClient) error) error {
	leader, err := c.findLeader(ctx)
	if err != nil {
		return err
	}
	client, err := c.dial(leader)
	if err != nil {
		return err
	}
	return fn(ctx, client)
}

// unreachableError: not one server answered, and each of them said so at once.
type unreachableError struct{ error }

func (e *unreachableError) Unwrap() error { return e.error }

// findLeader asks the servers one after the other who leads the metadata group.
func (c *cluster) findLeader(ctx context.Context) (string, error) {
	var silent []string
	heard, slow := false, false
	for i := 0; i < len(c.endpoints); i++ { // grows on the way
		addr := c.endpoints[i]
		client, err := c.dial(addr)
		if err != nil {
			return "", err
		}
		asked := time.Now()
		reply, err := hello(ctx, client)
		if err != nil {
			silent = append(silent, fmt.Sprintf("%s (%v)", addr, err))
			slow = slow || tookLong(asked, err)
			if err := c.forget(addr); err != nil {
				return "", err
			}
			continue
		}
		heard = true
		if reply.GetSchedulerLeader() != "" {
			return reply.GetSchedulerLeader(), nil
		}
		members := reply.GetSchedulers()
		for _, f := range reply.GetFounders() {
			members = append(members, f.GetAddr())
		}
		for _, addr := range members {
			if !slices.Contains(c.endpoints, addr) {
				c.endpoints = append(c.endpoints, addr)
			}
		}
	}
	if heard {
		return "", rowraft.Errorf(rowraft.CodeNoLeader, "the metadata group has no leader; no answer from: %s", orNone(silent))
	}
	err := rowraft.Errorf(rowraft.CodeNoLeader, "no server answers: %s", strings.Join(silent, "; "))
	err = cli.Hint(err, "is it running, is --endpoints right, and do both sides use TLS or both --insecure?")
	if slow {
		return "", err
	}
	return "", &unreachableError{err}
}

func hello(ctx context.Context, client rowraftv1.ClusterClient) (*rowraftv1.HelloReply, error) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	return client.Hello(ctx, &rowraftv1.HelloRequest{})
}

func orNone(s []string) string {
	if len(s) == 0 {
		return "none"
	}
	return strings.Join(s, "; ")
}

// status fetches the state of the whole cluster.
func (g *globals) status(ctx context.Context) (reply *rowraftv1.StatusReply, err error) {
	c, err := g.connect()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	err = c.call(ctx, true, func(ctx context.Context, client rowraftv1.ClusterClient) (err error) {
		reply, err = client.Status(ctx, &rowraftv1.StatusRequest{})
		return err
	})
	return reply, err
}

// statusInTime is status within --timeout.
func (g *globals) statusInTime(cmd *cobra.Command) (*rowraftv1.StatusReply, error) {
	ctx, cancel := g.withTimeout(cmd)
	defer cancel()
	return g.status(ctx)
}

// leaderConn is a connection to the leader of the metadata group, which is looked
// for until --timeout.
func (g *globals) leaderConn(cmd *cobra.Command, c *cluster) (*grpc.ClientConn, error) {
	ctx, cancel := g.withTimeout(cmd)
	defer cancel()
	leader := ""
	err := c.call(ctx, true, func(context.Context, rowraftv1.ClusterClient) (err error) {
		leader, err = c.findLeader(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return c.conn(leader)
}

// leaderCallRetry is the pause before the leader is looked for again.
const leaderCallRetry = 100 * time.Millisecond

// callLeader calls the leader of the metadata group, and until ctx ends again and again
// after errors of which again says that this may help.
func (g *globals) callLeader(ctx context.Context, cmd *cobra.Command, again func(rowraft.Code) bool, call func(*grpc.ClientConn) error) (err error) {
	c, err := g.connect()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	for {
		conn, err := g.leaderConn(cmd, c)
		if err != nil {
			return err
		}
		if err = call(conn); err == nil || !again(rowraft.CodeOf(err)) {
			return err
		}
		select { // the leader may be gone, and another one on its way
		case <-ctx.Done():
			return err
		case <-time.After(leaderCallRetry):
		}
	}
}
