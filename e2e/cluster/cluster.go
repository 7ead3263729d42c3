package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Cluster is server processes behind a Network.
type Cluster struct {
	*localcluster.Cluster
	Net *Network

	admins map[string]*grpc.ClientConn // to the servers themselves, past the proxies

	mu       sync.Mutex
	expected map[string]bool // servers that a fault has ended
}

// Start starts the servers and returns when all serve. opts.Front is set here.
func Start(ctx context.Context, opts localcluster.Options) (*Cluster, error) {
	c := &Cluster{Net: NewNetwork(), admins: make(map[string]*grpc.ClientConn), expected: make(map[string]bool)}
	// Before all are listed a proxy cannot name its callers: it waits.
	listed := make(chan struct{})
	known := func(source func(*Cluster) (string, []byte, error)) (string, []byte, error) {
		<-listed
		return source(c)
	}
	opts.Front = func(name, addr, peer string) (advertise, peerAdvertise string, err error) {
		return c.front(name, addr, peer, known)
	}
	var err error
	c.Cluster, err = localcluster.Start(ctx, opts, func(lc *localcluster.Cluster) {
		c.Cluster = lc
		close(listed)
	})
	if err != nil {
		c.Net.Close()
		return nil, err
	}
	for _, s := range c.Servers() {
		if c.admins[s.Name], err = rpc.Dial(s.Addr, nil); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}
