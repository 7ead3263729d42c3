package main

import (
	"context"
	"errors"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// askLimit bounds the call to one server. Tests change it.
var askLimit = route.AskLimit

// cluster calls a cluster through any of its servers.
type cluster struct {
	route.Cluster
	tls *certs.Source
}

func (g *globals) connect() (*cluster, error) {
	if len(g.endpoints) == 0 {
		return nil, cli.Usagef("no endpoints: give --endpoints or ROWRAFT_ENDPOINTS")
	}
	conf, err := g.clientTLS()
	if err != nil {
		return nil, err
	}
	return &cluster{tls: conf, Cluster: route.Cluster{Pool: route.NewPool(conf, nil, 1), Endpoints: slices.Clone(g.endpoints), AskLimit: askLimit}}, nil
}

// clientTLS returns the certificates for calls; nil: plaintext.
func (g *globals) clientTLS() (*certs.Source, error) {
	switch {
	case g.insecure && !g.tls.IsZero():
		return nil, cli.Usagef("both certificates and --insecure are given: want one of them")
	case !g.insecure && g.tls.IsZero():
		return nil, cli.Usagef("no certificates: give --cert, --key and --cacert, or --insecure for servers that run with it")
	}
	return g.tls.OpenToCall(nil)
}

func (c *cluster) close() error { return c.Pool.Close() }

// call is Call of the Cluster service.
func (c *cluster) call(ctx context.Context, layer route.Layer, fn func(context.Context, rowraftv1.ClusterClient) error) error {
	return c.Call(ctx, layer, func(ctx context.Context, conn *grpc.ClientConn) error {
		return fn(ctx, rowraftv1.NewClusterClient(conn))
	})
}

// status fetches the state of the whole cluster.
func (g *globals) status(ctx context.Context) (reply *rowraftv1.StatusReply, err error) {
	err = g.callLeader(ctx, route.Control, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		reply, err = rowraftv1.NewClusterClient(conn).Status(ctx, &rowraftv1.StatusRequest{})
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

// leaderConn returns a connection to the leader of the metadata group. It looks for the leader until --timeout.
func (g *globals) leaderConn(cmd *cobra.Command, c *cluster) (*grpc.ClientConn, error) {
	ctx, cancel := g.withTimeout(cmd)
	defer cancel()
	leader, err := c.AwaitLeader(ctx)
	if err != nil {
		return nil, err
	}
	return c.Pool.Get(leader)
}

// callLeader calls the leader of the metadata group, with retries until ctx ends.
func (g *globals) callLeader(ctx context.Context, layer route.Layer, call func(context.Context, *grpc.ClientConn) error) (err error) {
	c, err := g.connect()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	return c.Call(ctx, layer, call)
}
