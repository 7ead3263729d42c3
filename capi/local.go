//go:build cgo

package main

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/localcluster"
)

// cluster is servers of this machine that this process has started. They end with it.
type cluster struct {
	*localcluster.Cluster
	certs string
}

type clusterJSON struct {
	Handle    uint64            `json:"handle"`
	Endpoints []string          `json:"endpoints"`
	Certs     string            `json:"certs"`
	Servers   []localServerJSON `json:"servers"`
}

type localServerJSON struct {
	Name string `json:"name"`
	Addr string `json:"addr"`
	Pid  int    `json:"pid"` // 0: it has ended
	Log  string `json:"log"`
}

func startCluster(ctx context.Context, _ *session, q struct {
	Binary  string `json:"binary"`
	Dir     string `json:"dir"`
	Servers int    `json:"servers"`
	Shards  int    `json:"shards"` // 0: the server's default
}) (any, error) {
	if q.Servers < 1 || q.Servers > 9 {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "%d servers: want 1 to 9", q.Servers)
	}
	c := &cluster{certs: filepath.Join(q.Dir, "certs")}
	if err := makeCerts(c.certs); err != nil {
		return nil, err
	}
	var err error
	c.Cluster, err = localcluster.Start(ctx, localcluster.Options{Binary: q.Binary, Dir: q.Dir, Servers: q.Servers,
		Shards: q.Shards, Certs: c.certs})
	if err != nil {
		return nil, err
	}
	return c.view(clusters.add(c)), nil
}

// makeCerts makes a CA, the certificate of the servers, and that of an admin.
func makeCerts(dir string) error {
	const valid = 365 * 24 * time.Hour
	ca, err := certs.NewCA(dir, "local", 2*valid) // it outlives what it signs
	if err != nil {
		return err
	}
	hosts := []string{"127.0.0.1", "localhost"}
	for base, id := range map[string]certs.Identity{
		"server": {Role: certs.Server, Name: "server"}, "client": {Role: certs.Admin, Name: "admin"},
	} {
		if _, err := ca.Issue(filepath.Join(dir, base), certs.Request{Identity: id, Hosts: hosts, Valid: valid}); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) view(handle uint64) clusterJSON {
	v := clusterJSON{Handle: handle, Endpoints: c.Endpoints(), Certs: c.certs}
	for _, s := range c.Servers() {
		v.Servers = append(v.Servers, localServerJSON{s.Name, s.Addr, s.Pid(), s.LogFile})
	}
	return v
}

func stopCluster(_ context.Context, _ *session, q named) (any, error) {
	c, ok := clusters.remove(q.Handle)
	if !ok {
		return nil, nil
	}
	// Their data is removed next: nothing is gained by the minute that a server may take to stop.
	var errs []error
	for _, s := range c.Servers() {
		errs = append(errs, s.Kill())
	}
	return nil, errors.Join(append(errs, c.Stop())...)
}

func killServer(_ context.Context, _ *session, q named) (any, error) {
	c, s, err := server(q)
	if err != nil {
		return nil, err
	}
	if err := s.Kill(); err != nil {
		return nil, err
	}
	return c.view(q.Handle), nil
}

func restartServer(ctx context.Context, _ *session, q named) (any, error) {
	c, s, err := server(q)
	if err != nil {
		return nil, err
	}
	if err := c.Restart(ctx, s); err != nil {
		return nil, err
	}
	return c.view(q.Handle), nil
}

// server returns the server of a cluster.
func server(q named) (*cluster, *localcluster.Server, error) {
	c, ok := clusters.get(q.Handle)
	if !ok {
		return nil, nil, rowraft.Errorf(rowraft.CodeClosing, "the cluster is closed")
	}
	for _, s := range c.Servers() {
		if s.Name == q.Name {
			return c, s, nil
		}
	}
	return nil, nil, rowraft.Errorf(rowraft.CodeNotFound, "server %q: want n1 to n%d", q.Name,
		len(c.Servers()))
}
