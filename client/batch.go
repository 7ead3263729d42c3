package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/wave"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// unsureTries limits, in AttemptTimeouts, how long the client resends a batch after a server could not tell
// whether it applied the batch.
const unsureTries = 5

// batch is one message of a push, assign or delete to one shard. It takes effect at most
// once: the shard applies a number of a session one time. Its own goroutine runs
// [delivery.run] and closes done at the end.
type batch struct {
	cluster rowraft.ClusterID
	shard   rowraft.ShardID
	op      wire.Op
	payload []byte

	session  *shardSession // that gives the number; set by number
	seq      rowraft.Seq   // the number
	renewals int           // renewal.count of the session when seq was given
	queued   bool          // the batch's own goroutine takes the number (delivery.wait), not Push (number)

	done    chan struct{} // closed when err, index and slowest are set
	err     error
	index   rowraft.Index
	slowest uint64 // for an OpClocked: the clock of the slowest worker of the job

	first *firstWrite // nil: no other batch is sent with it

	// after are the batches that must be acknowledged before this one is sent.
	after []*batch

	// settled is set once by the batch's goroutine when it has the result and once by a
	// Push that stops waiting. The second setter keeps the error for Flush.
	settled atomic.Bool
}

// firstWrite is the first try of a batch.
type firstWrite = wave.Try[rowraftv1.WriteRequest, *rowraftv1.WriteReply]

// batchState is a state of a batch, from start to its result. docs/push.md has the same names.
type batchState int

const (
	waiting    batchState = iota // for the batches in after, then for a number
	sending                      // to the leader of the shard, under its number
	refreshing                   // the client's cluster map is older than the shard's
	unsure                       // a server could not tell whether it applied the batch: the next leader can
	renewing                     // the session is over: another one gives the batch another number
	ended                        // with err, nil if the batch is acknowledged
)

// number gives batches their numbers, up to the first one that would have to wait, and returns how many can be
// started. For the first of them it waits until the session may give a number (shardSession.take) or ctx ends. If ctx
// ends and mayQueue is set, that batch is queued: its goroutine takes the number later. A batch with batches before it
// is always queued.
func (c *Client) number(ctx context.Context, batches []*batch, mayQueue bool) (int, error) {
	for i, b := range batches {
		b.session = c.sessions.shards.at(b.shard).session.Load()
		if b.session == nil || b.session.cluster != b.cluster { // the client has left the cluster
			return i, rowraft.Errorf(rowraft.CodePrecondition, "shard %d: nothing was sent: %w", b.shard,
				c.cluster.replaced(b.cluster))
		}
		switch {
		case len(b.after) > 0:
			b.session.queue(b)
		case b.session.tryTake(b):
		case i > 0:
			return i, nil
		default:
			if err := b.session.take(ctx, b); err != nil && (err == errClosed || !mayQueue) {
				return i, err
			} else if err != nil {
				b.session.queue(b)
			}
		}
	}
	return len(batches), nil
}

// start starts the goroutine that sends b. try is its place in a wave; a queued batch leaves that place, because the
// others of the wave must not wait for its number.
func (c *Client) start(b *batch, try *firstWrite) {
	if b.queued {
		try.Skip()
	} else {
		b.first = try
	}
	err := c.spawn(func() { (&delivery{c: c, b: b}).run() })
	if err == nil {
		return
	}
	try.Skip()
	if b.queued {
		b.session.unqueue()
	} else {
		b.session.end(b.seq)
	}
	b.notSent(err)
}

// notSent ends a batch that was not sent.
func (b *batch) notSent(err error) {
	b.err = err
	b.settled.Store(true)
	close(b.done)
}

// delivery is one batch on the way to its result. Only the batch's goroutine uses it.
type delivery struct {
	c *Client
	b *batch

	sent  bool // the batch has, or had, a number: a try may have been sent
	tries int
	err   error // the error of the last state

	// maybe: the code of some try says that the batch may have been applied. risky: the same,
	// but SessionEndedError does not count. That code says maybe as well, because of the earlier
	// tries; the try that gets it was not applied. Only a batch that is not risky may be renewed.
	maybe, risky bool

	// The first CodeInternal limits ctx to unsureTries. When ctx ends, that error is the result.
	unsureErr error
	ctx       context.Context
	cancel    context.CancelFunc
	backoff   route.Backoff
}

// run takes the batch from state to state, records the result, and tells the session that the number has
// one.
func (d *delivery) run() {
	c, b := d.c, d.b
	d.ctx, d.cancel = c.ctx, func() {}
	defer func() { d.cancel() }()
	defer b.first.Skip()
	state := sending
	if b.queued {
		state = waiting
	}
	for state != ended {
		switch state {
		case waiting:
			state = d.wait()
		case sending:
			state = d.send()
		case refreshing:
			c.cluster.askForMap()
			state = d.pause(c.ctx, new(route.Backoff))
		case unsure:
			state = d.pause(d.ctx, &d.backoff)
		case renewing:
			state = d.renew()
		}
	}
	b.err = d.result()
	if b.settled.Swap(true) {
		c.deferred.put(b.err) // before session.end, after which Flush may return
	}
	switch {
	case errors.Is(b.err, errClosed): // the shard has not answered: the number stays taken
	case d.sent:
		b.session.end(b.seq)
	default:
		rpc.Pool.Release(b.payload)
		b.session.unqueue()
	}
	close(b.done)
}

// wait waits until the batches before this one are acknowledged, and for a number.
func (d *delivery) wait() batchState {
	for _, before := range d.b.after {
		if <-before.done; before.err != nil {
			d.err = rowraft.Errorf(rowraft.CodeNotSent, "%s to shard %d was not sent, because an earlier batch of it failed: %w",
				opName(d.b.op), d.b.shard, before.err)
			return ended
		}
	}
	if d.err = d.b.session.take(context.Background(), d.b); d.err != nil { // ends with the client
		return ended
	}
	return sending
}

// send sends the batch to the leader of its shard until an answer is not for onLeader to
// handle (route.Table), and returns the state that this answer leads to (route.Batch).
func (d *delivery) send() batchState {
	c, b := d.c, d.b
	d.sent = true
	var reply *rowraftv1.WriteReply
	m := c.cluster.Load()
	maybe, err := c.router.onLeader(d.ctx, b.cluster, b.shard, callKind{}, func(at server) error {
		defer b.first.Skip()
		return c.router.try(d.ctx, b.shard, at, func(ctx context.Context, stub stub) (err error) {
			d.tries++
			inc, floor := b.session.present()
			reply, err = wave.Writes.Send(ctx, b.first, stub, &rowraftv1.WriteRequest{
				MapVersion: uint64(m.SlotsVersion), TableEpoch: c.sessions.epoch.Load(), Shard: uint32(b.shard),
				ClientId:    c.sessions.client[:],
				Incarnation: inc, Seq: uint64(b.seq), Floor: floor, Op: rowraftv1.WriteOp(b.op), Payload: b.payload,
			})
			if err != nil && rowraft.CodeOf(err).MaybeApplied() && !sessionEnded(err) {
				d.risky = true
			}
			return c.cluster.retryUntilTableKnown(err, b.segments())
		})
	})
	d.maybe = d.maybe || maybe
	if d.err = err; err == nil {
		index := reply.GetAppliedIndex()
		c.cluster.within(b.cluster, func() { c.acked.raise(b.shard, index) })
		b.index, b.slowest = rowraft.Index(index), reply.GetSlowestClock()
		if d.tries == 1 { // after a failed try the payload may still be in a transport's queue
			rpc.Pool.Release(b.payload)
		}
		b.payload = nil
		return ended
	}
	switch route.On(route.Batch, err) {
	case route.Refresh:
		if ws, ok := errors.AsType[*rowraft.WrongShardError](err); ok && m.SlotsVersion < ws.Want {
			return refreshing
		}
	case route.Resend:
		if d.unsureErr == nil {
			d.unsureErr = err
			d.ctx, d.cancel = context.WithTimeout(c.ctx, unsureTries*c.opts.AttemptTimeout)
		}
		return unsure
	case route.Renew:
		if sessionEnded(err) && !d.risky {
			return renewing
		}
	}
	return ended
}

// pause backs off before the batch is sent again. If ctx ends first, the error of the last
// try stands.
func (d *delivery) pause(ctx context.Context, b *route.Backoff) batchState {
	if d.c.pause(ctx, b, 0) != nil {
		return ended
	}
	return sending
}

// renew gives the batch a number in another session.
func (d *delivery) renew() batchState {
	switch err := d.c.sessions.renew(d.b); err {
	case nil:
		d.maybe = false
		return sending
	case errClosed:
		d.err = errClosed
	default:
		d.err = fmt.Errorf("%w; another session could not be opened: %w", d.err, err)
	}
	return ended
}

// result returns the error with which the batch ends. Its code reports whether any try may have
// applied the batch.
func (d *delivery) result() error {
	if d.err == nil || !d.sent {
		return d.err
	}
	err := d.err
	if d.unsureErr != nil && d.ctx.Err() != nil && d.c.ctx.Err() == nil {
		err = d.unsureErr
	}
	err = fmt.Errorf("%s to shard %d under number %d: %w", opName(d.b.op), d.b.shard, d.b.seq, err)
	if d.maybe && !rowraft.CodeOf(err).MaybeApplied() {
		err = rowraft.Errorf(rowraft.CodeUnknown, "an earlier try may have been applied: %w", err)
	}
	return err
}

// segments returns the payload without a clock.
func (b *batch) segments() []byte {
	if b.op != wire.OpClocked {
		return b.payload
	}
	_, segments, _ := wire.ParseClock(b.payload)
	return segments
}

func opName(op wire.Op) string {
	switch op {
	case wire.OpAssign:
		return "assign"
	case wire.OpDelete:
		return "delete"
	}
	return "push"
}
