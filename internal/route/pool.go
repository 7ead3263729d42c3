package route

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
)

// Pool keeps a fixed number of connections per address and hands them out in turn. A
// connection lives until Forget or Close; gRPC opens it at its first call, and again after
// it broke. Safe for concurrent use.
type Pool struct {
	tls     *certs.Source
	dial    rpc.DialFunc
	perAddr int

	mu     sync.RWMutex
	addrs  map[string]*addrConns
	closed bool
}

type addrConns struct {
	next  atomic.Uint32
	conns []*grpc.ClientConn
}

// NewPool returns an empty pool. A nil source means plaintext, a nil dial TCP.
func NewPool(source *certs.Source, dial rpc.DialFunc, perAddr int) *Pool {
	return &Pool{tls: source, dial: dial, perAddr: perAddr, addrs: make(map[string]*addrConns)}
}

// Get returns a connection to addr.
//
// Errors: CodeClosing after Close; CodeInvalidArgument if addr is no address.
func (p *Pool) Get(addr string) (*grpc.ClientConn, error) {
	p.mu.RLock()
	a := p.addrs[addr]
	p.mu.RUnlock()
	if a == nil {
		var err error
		if a, err = p.add(addr); err != nil {
			return nil, err
		}
	}
	return a.conns[int(a.next.Add(1))%len(a.conns)], nil
}

func (p *Pool) add(addr string) (*addrConns, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, rowraft.Errorf(rowraft.CodeClosing, "the connections of this process are closed")
	}
	if a := p.addrs[addr]; a != nil {
		return a, nil
	}
	a := &addrConns{}
	for range p.perAddr {
		conn, err := rpc.Dial(addr, p.tls, p.dial)
		if err != nil {
			return nil, errors.Join(rowraft.Errorf(rowraft.CodeInvalidArgument, "address %q: %w", addr, err), a.close())
		}
		a.conns = append(a.conns, conn)
	}
	p.addrs[addr] = a
	return a, nil
}

// All returns the connections to addr that the pool has.
func (p *Pool) All(addr string) []*grpc.ClientConn {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if a := p.addrs[addr]; a != nil {
		return a.conns
	}
	return nil
}

// reachLimit bounds how long a call waits for a connection to a server that was away.
const reachLimit = 100 * time.Millisecond

// Reach opens the broken connections to addr again. gRPC pauses up to half a second
// between its own tries, and a server that was just named as the leader is running.
func (p *Pool) Reach(ctx context.Context, addr string) {
	conns := p.All(addr)
	if conns == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	for _, c := range conns {
		if c.GetState() == connectivity.TransientFailure {
			c.ResetConnectBackoff()
		}
	}
	for _, c := range conns {
		c.WaitForStateChange(ctx, connectivity.TransientFailure) // returns at once if it is in another
	}
}

// Forget closes the connections to addr. The next Get makes new ones, which do not return
// the error that the old ones ended with.
func (p *Pool) Forget(addr string) error {
	p.mu.Lock()
	a := p.addrs[addr]
	delete(p.addrs, addr)
	p.mu.Unlock()
	if a == nil {
		return nil
	}
	return a.close()
}

// Close closes all connections. Calls on them end, and Get fails from then on.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var errs []error
	for _, a := range p.addrs {
		errs = append(errs, a.close())
	}
	p.addrs = nil
	return errors.Join(errs...)
}

func (a *addrConns) close() error {
	var errs []error
	for _, c := range a.conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// With calls fn with a connection of its own to addr, and closes it.
func With(addr string, source *certs.Source, fn func(*grpc.ClientConn) error) (err error) {
	conn, err := rpc.Dial(addr, source, nil)
	if err != nil {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "address %q: %w", addr, err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return fn(conn)
}
