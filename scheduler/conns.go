package scheduler

import (
	"errors"
	"sync"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
)

// conns keeps one connection per address. Safe for concurrent use.
type conns struct {
	tls  *certs.Source
	dial rpc.DialFunc

	mu     sync.Mutex
	byAddr map[string]*grpc.ClientConn
	closed bool
}

func newConns(conf *certs.Source, dial rpc.DialFunc) *conns {
	return &conns{tls: conf, dial: dial, byAddr: make(map[string]*grpc.ClientConn)}
}

func (c *conns) get(addr string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, rowraft.Errorf(rowraft.CodeClosing, "closing")
	}
	if conn := c.byAddr[addr]; conn != nil {
		return conn, nil
	}
	conn, err := rpc.Dial(addr, c.tls, c.dial)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "address %q: %w", addr, err)
	}
	c.byAddr[addr] = conn
	return conn, nil
}

func (c *conns) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	var errs []error
	for _, conn := range c.byAddr {
		errs = append(errs, conn.Close())
	}
	c.byAddr = nil
	return errors.Join(errs...)
}
