package client

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
)

// errClosed is the error of calls that run while Close runs, or after it.
var errClosed = rowraft.Errorf(rowraft.CodeClosing, "the client is closed")

// lifetime is the time from Dial to Close, and the goroutines of the client in it.
type lifetime struct {
	ctx    context.Context // ends when Close begins
	cancel context.CancelFunc

	workers *rpc.Workers // run what spawn is given

	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup // spawn adds to it under mu, so that end never waits while it grows
}

func newLifetime() *lifetime {
	l := &lifetime{workers: rpc.NewWorkers()}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// end begins Close and waits for all goroutines. It reports whether this is the first call.
func (l *lifetime) end() (first bool) {
	l.mu.Lock()
	first = !l.closed
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	l.wg.Wait()
	if first {
		l.workers.Close()
	}
	return first
}

// spawn runs f on another goroutine, for which Close waits, or reports that Close has begun.
func (l *lifetime) spawn(f func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errClosed
	}
	l.wg.Add(1)
	l.workers.Run(func() {
		f()
		l.wg.Done() // not deferred: a panic must end the process before Close returns
	})
	return nil
}

// ended returns the error of a call that stops trying: errClosed if the client is closed, else its last
// answer.
func (l *lifetime) ended(last error) error {
	if l.ctx.Err() == nil {
		return last
	}
	if last == nil {
		return errClosed
	}
	return fmt.Errorf("%w; the last answer was: %v", errClosed, last)
}

// pause waits for the next delay of b, or for atLeast if that is longer. It returns the error of ctx, or
// errClosed if the client closes first.
func (l *lifetime) pause(ctx context.Context, b *route.Backoff, atLeast time.Duration) error {
	t := time.NewTimer(b.Delay(atLeast))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-l.ctx.Done():
		return errClosed
	}
}

// ctxMutex is a mutex of capacity 1 whose lock ends with a context.
type ctxMutex chan struct{}

// lock waits until m is free, ctx ends, or the client is closed (errClosed).
func (l *lifetime) lock(ctx context.Context, m ctxMutex) error {
	select {
	case m <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-l.ctx.Done():
		return errClosed
	}
}

func (m ctxMutex) unlock() { <-m }
