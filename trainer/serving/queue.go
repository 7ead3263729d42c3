package serving

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
)

// call is one request. The worker that holds a chunk of it writes the scores of the chunk.
type call struct {
	ctx    context.Context // has a deadline
	batch  *data.Batch
	scores []float32 // [examples, tasks]

	taken int // examples in chunks; under queue.mu
	left  atomic.Int64
	once  sync.Once
	err   error // set before done is closed
	done  chan struct{}
}

func newCall(ctx context.Context, b *data.Batch, tasks int) *call {
	c := &call{ctx: ctx, batch: b, scores: make([]float32, b.N*tasks), done: make(chan struct{})}
	c.left.Store(int64(b.N))
	return c
}

// finish counts n examples as computed, or ends the call with an error.
func (c *call) finish(n int, err error) {
	if err != nil || c.left.Add(-int64(n)) == 0 {
		c.once.Do(func() {
			c.err = err
			close(c.done)
		})
	}
}

// chunk is some examples of a call: from ≤ number < to.
type chunk struct {
	call     *call
	from, to int
}

// queue holds the calls whose examples no worker has taken.
type queue struct {
	limit int // examples

	mu       sync.Mutex
	more     sync.Cond // on mu: there are calls, or closed
	calls    []*call
	examples int
	closed   bool
}

func newQueue(limit int) *queue {
	q := &queue{limit: limit}
	q.more.L = &q.mu
	return q
}

// retryAfter is how long an overloaded caller should wait. A full queue is computed in less.
const retryAfter = time.Second

// put appends a call.
//
// Errors: CodeOverloaded if its examples do not fit, CodeClosing after close.
func (q *queue) put(c *call) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return rowraft.Errorf(rowraft.CodeClosing, "the server is stopping")
	case q.examples+c.batch.N > q.limit:
		return &rowraft.OverloadedError{What: fmt.Sprintf("%d examples wait, and %d more would be above the limit of %d",
			q.examples, c.batch.N, q.limit), Limit: "queue", RetryAfter: retryAfter}
	}
	q.calls = append(q.calls, c)
	q.examples += c.batch.N
	q.more.Signal()
	return nil
}

// take waits for calls and appends chunks of up to size examples, of one call only if alone returns true. It returns
// false when the queue is closed and empty.
func (q *queue) take(chunks []chunk, size int, alone func() bool) ([]chunk, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for len(q.calls) == 0 {
			if q.closed {
				return chunks, false
			}
			q.more.Wait()
		}
		for len(q.calls) > 0 && size > 0 {
			c := q.calls[0]
			n := min(c.batch.N-c.taken, size)
			ended := c.ctx.Err()
			if ended != nil {
				n = c.batch.N - c.taken
			} else {
				chunks = append(chunks, chunk{c, c.taken, c.taken + n})
				size -= n
			}
			c.taken += n
			q.examples -= n
			if c.taken == c.batch.N {
				q.calls[0] = nil
				q.calls = q.calls[1:]
			}
			if ended != nil {
				c.finish(0, ended)
			} else if alone() {
				break
			}
		}
		if len(q.calls) > 0 {
			q.more.Signal() // for the next worker
		}
		if len(chunks) > 0 {
			return chunks, true
		}
	}
}

// waiting returns the number of queued examples.
func (q *queue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.examples
}

// close makes put refuse calls, and take end when the queue is empty.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.more.Broadcast()
}
