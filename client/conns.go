package client

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

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

// delay returns the next one, or one after atLeast if that is longer.
func (b *backoff) delay(atLeast time.Duration) time.Duration {
	b.next = min(max(2*b.next, 5*time.Millisecond), 100*time.Millisecond)
	d := max(b.next, atLeast)
	return d + time.Duration(rand.Int64N(int64(d)/2+1))
}
