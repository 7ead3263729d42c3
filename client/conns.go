package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
)

// connPool keeps n connections per address and hands them out in turn.
type connPool struct {
	tls  *certs.Source
	dial rpc.DialFunc
	n    int

	mu     sync.RWMutex
	addrs  map[string]*addrConns
	closed bool
}

type addrConns struct {
	next  atomic.Uint32
	conns []*grpc.ClientConn
}

func newConnPool(conf *certs.Source, dial rpc.DialFunc, n int) *connPool {
	return &connPool{tls: conf, dial: dial, n: n, addrs: make(map[string]*addrConns)}
}

func (p *connPool) get(addr string) (*grpc.ClientConn, error) {
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

func (p *connPool) add(addr string) (*addrConns, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, rowraft.Errorf(rowraft.CodeClosing, "the client is closed")
	}
	if a := p.addrs[addr]; a != nil {
		return a, nil
	}
	a := &addrConns{}
	for range p.n {
		conn, err := rpc.Dial(addr, p.tls, p.dial)
		if err != nil {
			return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "address %q: %w", addr, err)
		}
		a.conns = append(a.conns, conn)
	}
	p.addrs[addr] = a
	return a, nil
}

// reachLimit bounds how long a call waits for a connection to a server that has been away.
const reachLimit = 100 * time.Millisecond

// reach opens the connections to addr again, if they are broken: gRPC pauses between its
// tries, up to half a second, and whoever was found to lead has just shown that it is there.
func (p *connPool) reach(ctx context.Context, addr string) {
	p.mu.RLock()
	a := p.addrs[addr]
	p.mu.RUnlock()
	if a == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	for _, c := range a.conns {
		if c.GetState() == connectivity.TransientFailure {
			c.ResetConnectBackoff()
		}
	}
	for _, c := range a.conns {
		c.WaitForStateChange(ctx, connectivity.TransientFailure) // returns at once if it is in another
	}
}

func (p *connPool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var errs []error
	for _, a := range p.addrs {
		for _, c := range a.conns {
			errs = append(errs, c.Close())
		}
	}
	p.addrs = nil
	return errors.Join(errs...)
}

// backoff gives delays: 5 ms, then twice as long each time up to 100 ms, with jitter: a
// new leader is there within half a second, and must not be missed by much.
type backoff struct{ next time.Duration }

const longestBackoff = 100 * time.Millisecond

// delay returns the next one, or one after atLeast if that is longer.
func (b *backoff) delay(atLeast time.Duration) time.Duration {
	b.next = min(max(2*b.next, 5*time.Millisecond), longestBackoff)
	d := max(b.next, atLeast)
	return d + time.Duration(rand.Int64N(int64(d)/2+1))
}
