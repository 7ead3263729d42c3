package remote

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Conn calls a cluster through any of its servers.
type Conn struct {
	route.Cluster
	TLS *certs.Source // certificates of the calls; nil: plaintext
}

// Connect prepares calls to the cluster of --endpoints. It sends nothing.
func (g *Flags) Connect() (*Conn, error) {
	if len(g.Endpoints) == 0 {
		return nil, cli.Usagef("no endpoints: give --endpoints or ROWRAFT_ENDPOINTS")
	}
	conf, err := g.clientTLS()
	if err != nil {
		return nil, err
	}
	return &Conn{TLS: conf, Cluster: route.Cluster{Pool: route.NewPool(conf, nil, 1), Endpoints: slices.Clone(g.Endpoints),
		AskLimit: g.AskLimit}}, nil
}

// clientTLS returns the certificates for calls; nil: plaintext.
func (g *Flags) clientTLS() (*certs.Source, error) {
	switch {
	case g.Insecure && !g.TLS.IsZero():
		return nil, cli.Usagef("both certificates and --insecure are given: want one of them")
	case !g.Insecure && g.TLS.IsZero():
		return nil, cli.DevHint(
			cli.Usagef("no certificates: give --cert, --key and --cacert, or --insecure for servers that run with it"))
	}
	return g.TLS.OpenToCall(nil)
}

// Close closes the connections.
func (c *Conn) Close() error { return c.Pool.Close() }

// DialClient connects a client of the data plane.
func (g *Flags) DialClient(ctx context.Context) (*client.Client, error) {
	if len(g.Endpoints) == 0 {
		return nil, cli.Usagef("no endpoints: give --endpoints or ROWRAFT_ENDPOINTS")
	}
	if _, err := g.clientTLS(); err != nil {
		return nil, err
	}
	return client.Dial(ctx, client.Options{Endpoints: g.Endpoints, TLS: g.TLS})
}

// Call calls method at the scheduler's leader within --timeout. layer says which failed attempts are
// repeated.
func Call[C, Q, R any](ctx context.Context, g *Flags, layer route.Layer, service func(grpc.ClientConnInterface) C,
	method func(C, context.Context, *Q, ...grpc.CallOption) (*R, error), req *Q) (reply *R, err error) {
	ctx, cancel := context.WithTimeout(ctx, g.Timeout)
	defer cancel()
	c, err := g.Connect()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	err = c.Call(ctx, layer, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		reply, err = method(service(conn), ctx, req)
		return err
	})
	return reply, err
}

// CallLong finds the scheduler's leader within --timeout and calls it one time, without a limit on the call's
// time.
func CallLong[C any](ctx context.Context, g *Flags, service func(grpc.ClientConnInterface) C,
	do func(context.Context, C) error) (err error) {
	c, err := g.Connect()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	search, cancelSearch := context.WithTimeout(ctx, g.Timeout)
	defer cancelSearch()
	leader, err := c.AwaitLeader(search)
	if err != nil {
		return err
	}
	conn, err := c.Pool.Get(leader)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return do(ctx, service(conn))
}

// Status fetches the state of the whole cluster within --timeout.
func (g *Flags) Status(ctx context.Context) (*rowraftv1.StatusReply, error) {
	return Call(ctx, g, route.Control, rowraftv1.NewClusterClient, rowraftv1.ClusterClient.Status,
		&rowraftv1.StatusRequest{})
}

// HintIfBroken adds hint to an error of a call that no server returned.
func HintIfBroken(err error, hint string) error {
	if rpc.Broken(err) || rowraft.CodeOf(err) == rowraft.CodeLeadershipLost {
		return cli.Hint(err, hint)
	}
	return err
}
