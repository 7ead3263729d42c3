package wave

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Reply is the answer to a batch.
type Reply interface {
	GetBatch() uint32 // index in the shared request
	GetError() *rowraftv1.ErrorDetail
}

// Replies returns the next replies of a shared call; io.EOF after the last ones.
type Replies[R Reply] func() ([]R, error)

// Shared is one call with several batches. It calls done once for each batch that does not leave first, with the reply
// or the error of the batch, on the goroutine of Run.
type Shared[R Reply] struct {
	cancel context.CancelFunc
	done   func(batch int, reply R, err error)

	mu      sync.Mutex
	settled []bool // by batch: done is called for it, or it has left
	pending int    // batches that are not settled
}

// NewShared returns a call with n batches. cancel ends its context.
func NewShared[R Reply](n int, cancel context.CancelFunc, done func(batch int, reply R, err error)) *Shared[R] {
	return &Shared[R]{cancel: cancel, done: done, settled: make([]bool, n), pending: n}
}

// Leave removes a batch from the call. It reports false if the batch is settled. After the last batch the call ends, so
// that the server stops its work.
func (c *Shared[R]) Leave(batch int) bool {
	ok, last := c.settle(batch)
	if ok && last {
		c.cancel()
	}
	return ok
}

// Settled reports whether a batch has its result or has left.
func (c *Shared[R]) Settled(batch int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settled[batch]
}

// settle makes a batch settled. ok: it was not before; last: no other batch waits.
func (c *Shared[R]) settle(batch int) (ok, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.settled[batch] {
		return false, false
	}
	c.settled[batch] = true
	c.pending--
	return true, c.pending == 0
}

// Run passes the replies of the call to done until the call ends. err: the call could not be made. An error is the
// result of each batch that has no answer.
func (c *Shared[R]) Run(next Replies[R], err error) {
	answered := make([]bool, len(c.settled))
	for err == nil {
		var some []R
		if some, err = next(); err == nil {
			err = c.answer(some, answered)
		}
	}
	if errors.Is(err, io.EOF) {
		err = rowraft.Errorf(rowraft.CodeUnknown, "the server ended the call without an answer to this batch")
	}
	var none R
	for i := range answered {
		if ok, _ := c.settle(i); ok {
			c.done(i, none, rpc.FromStatus(err))
		}
	}
}

// answer passes replies to done.
func (c *Shared[R]) answer(some []R, answered []bool) error {
	var none R
	for _, reply := range some {
		i := int(reply.GetBatch())
		if i >= len(answered) || answered[i] {
			return rowraft.Errorf(rowraft.CodeUnknown, "the server answered batch %d of %d, or answered it twice", i,
				len(answered))
		}
		answered[i] = true
		ok, last := c.settle(i)
		switch d := reply.GetError(); {
		case !ok: // it has left
		case d != nil:
			c.done(i, none, rpc.FromDetail(d))
		default:
			c.done(i, reply, nil)
		}
		if last && slices.Contains(answered, false) { // the server still works on a batch that has left
			c.cancel()
		}
	}
	return nil
}

// Cut returns how many of n payloads, from the first one on, fit into one call: at least one.
func Cut(n int, payload func(i int) []byte) int {
	return rpc.Fit(min(n, rpc.MaxBatches), SharedBytes, payload)
}
