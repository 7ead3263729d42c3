package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// partBytes is what a part is filled up to. One part becomes one log entry at
// most, and a full batch of 8,192 rows of dim 16 over one shard fits.
const partBytes = 1 << 20

// saidFrom is the size from which a part is said before it is sent: a server reads a
// smaller one for less than a header costs.
const saidFrom = 16 << 10

// settleTries bounds, in AttemptTimeouts, how long a part is sent again that a server
// could not tell of.
const settleTries = 5

// Ack tells of an acknowledged push.
type Ack struct {
	Parts int // messages it was cut into

	// Index is, per shard the push touched, an index at which it is visible.
	Index map[rowraft.ShardID]rowraft.Index
}

// Push applies the gradients of all segments, as Table.Push does for one.
// Segments of different tables that touch one shard travel in one part while it
// has room (1 MiB).
func (c *Client) Push(ctx context.Context, segs ...Segment) (Ack, error) {
	return c.send(ctx, wire.OpPush, segs)
}

// Assign sets the weights of all segments, as Table.Assign does for one.
func (c *Client) Assign(ctx context.Context, segs ...Segment) (Ack, error) {
	return c.send(ctx, wire.OpAssign, segs)
}

// Delete removes the rows of all segments, as Table.Delete does for one. Their
// Values must be empty.
func (c *Client) Delete(ctx context.Context, segs ...Segment) (Ack, error) {
	return c.send(ctx, wire.OpDelete, segs)
}

func (c *Client) send(ctx context.Context, op wire.Op, segs []Segment) (Ack, error) {
	parts, err := c.parts(op, segs)
	if err != nil {
		return Ack{}, err
	}
	return c.sendParts(ctx, parts)
}

// parts cuts segs into messages, not numbered yet.
func (c *Client) parts(op wire.Op, segs []Segment) ([]*part, error) {
	if err := c.takeLost(); err != nil {
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "nothing of this %s was sent, because an earlier one failed after its caller had left: %w", opName(op), err)
	}
	if err := c.admitPush(); err != nil {
		return nil, err
	}
	ready, err := c.prepare(op, segs)
	if err != nil {
		return nil, err
	}
	m := c.cluster.Load()
	if err := ofCluster(m, ready); err != nil {
		return nil, err
	}
	perRow := func(s *Segment) load { return load{sent: 8 + s.Table.schema.Dim*c.opts.DType.Size()} }
	if op == wire.OpDelete {
		perRow = func(*Segment) load { return load{sent: 8} }
	}
	reqs := plan(m, ready, perRow, load{sent: partBytes})
	parts := make([]*part, len(reqs))
	for i := range reqs {
		parts[i] = c.encode(op, &reqs[i])
		parts[i].cluster = m.Cluster
	}
	return parts, nil
}

// sendParts numbers and sends parts and waits for their answers. Once the first part has
// a number, every other one is sent too: if ctx ends before there is a place for it, it
// is queued.
func (c *Client) sendParts(ctx context.Context, parts []*part) (Ack, error) {
	if err := c.openSessions(ctx, parts); err != nil {
		return Ack{}, err
	}
	for i, p := range parts {
		if err := c.start(ctx, p, i > 0); err != nil {
			return Ack{}, c.partial(ctx, parts[:i], err)
		}
	}
	return c.await(ctx, parts)
}

// admitPush refuses a new push while batches of earlier pushes wait for the retry budget,
// if the client is to fail then. Nothing of the new push was sent.
func (c *Client) admitPush() error {
	if waiting := c.budget.Waiting(); waiting > 0 && c.opts.FailWhenOverloaded {
		return route.SpentError(fmt.Errorf("%d parts of earlier pushes wait to be sent again, nothing of this one was sent", waiting))
	}
	return nil
}

// prepare checks and normalizes segs.
func (c *Client) prepare(op wire.Op, segs []Segment) ([]Segment, error) {
	ready := make([]Segment, len(segs))
	for i := range segs {
		if err := segs[i].check(op); err != nil {
			return nil, err
		}
		ready[i] = normalize(segs[i], op)
		if err := c.checkPush(&ready[i]); err != nil { // after: a sum may be infinite
			return nil, err
		}
	}
	return ready, distinctTables(ready)
}

// The bits, without sign, of the first number that is not finite: as float32, and
// after it was rounded to bfloat16.
const (
	infinite32 = 0x7f800000
	infinite16 = 0x7f7f8000
)

// checkPush refuses what a shard would refuse: other parts of the push might be
// applied by then.
func (c *Client) checkPush(s *Segment) error {
	d, infinite := s.Table.schema.Dim, uint32(infinite32)
	if c.opts.DType == rowraft.BFloat16 {
		infinite = infinite16
	}
	for i, v := range s.Values {
		if math.Float32bits(v)&^(1<<31) >= infinite {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s: key %d, dimension %d is %v: gradients and weights must be finite as %s", s.Table.schema.Name, s.Keys[i/d], i%d, v, c.opts.DType)
		}
	}
	if !(s.LR >= 0) || s.LR-s.LR != 0 {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s: learning rate %v: want a finite number ≥ 0", s.Table.schema.Name, s.LR)
	}
	return nil
}

func distinctTables(segs []Segment) error {
	for i := range segs {
		for j := range i {
			if segs[i].Table == segs[j].Table {
				return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s stands in two segments of one push: join them", segs[i].Table.schema.Name)
			}
		}
	}
	return nil
}

// part is one numbered message to one shard. Its own goroutine resends it until
// there is a definite answer, then closes done.
type part struct {
	cluster rowraft.ClusterID
	shard   rowraft.ShardID
	op      wire.Op
	payload []byte
	seq     rowraft.Seq

	renewals int  // of the session, when seq was given
	queued   bool // it gets its number on its own goroutine

	done    chan struct{} // closed when what follows is set
	err     error
	index   rowraft.Index
	slowest uint64 // clock of the job, of an OpClocked

	// after are the parts that must be acknowledged before this one is sent.
	after []*part

	// settled is set once by the part's goroutine when it has the answer and once by a
	// Push that stops waiting. The second setter keeps the error for Flush.
	settled atomic.Bool
}

func (c *Client) encode(op wire.Op, r *request) *part {
	size := 0
	for i := range r.pieces {
		size += c.pushSegment(op, &r.pieces[i]).Size()
	}
	p := &part{shard: r.shard, op: op, payload: rpc.Pool.Bytes(size), done: make(chan struct{})}
	at := 0
	for i := range r.pieces {
		s := c.pushSegment(op, &r.pieces[i])
		body := s.Put(p.payload[at : at+s.Size()])
		r.pieces[i].putKeys(body.Keys)
		if op != wire.OpDelete {
			r.pieces[i].putValues(body.Values, s.DType)
		}
		at += s.Size()
	}
	return p
}

func (c *Client) pushSegment(op wire.Op, p *piece) wire.Segment {
	s := wire.Segment{
		Table: p.seg.Table.schema.ID,
		N:     len(p.rows),
		Dim:   p.seg.Table.schema.Dim,
		DType: c.opts.DType,
		LR:    p.seg.LR,
	}
	if s.LR != 0 {
		s.Flags |= wire.FlagLR
	}
	if op == wire.OpDelete {
		s.Flags = wire.FlagNoValues
	}
	return s
}

// start numbers the part and begins to send it. It waits, as long as ctx allows, for a
// free place among the unacknowledged parts. A part that may be queued is sent even if
// ctx ends before that; one with parts before it waits for their answers first.
func (c *Client) start(ctx context.Context, p *part, mayQueue bool) error {
	ss := c.session.shards[p.shard].Load()
	if ss == nil || ss.cluster != p.cluster { // the client has left the cluster
		return rowraft.Errorf(rowraft.CodePrecondition, "nothing was sent: %w", c.replaced(p.cluster))
	}
	if len(p.after) > 0 {
		ss.queue(p)
	} else if err := ss.take(ctx, p); err != nil && (err == errClosed || !mayQueue) {
		return err
	} else if err != nil {
		ss.queue(p)
	}
	err := c.spawn(func() { c.run(ss, p) })
	switch {
	case err == nil:
	case p.queued:
		ss.unqueue()
	default:
		ss.answered(p.seq) // it was not sent
	}
	return err
}

// run sends p, a queued one when it has a number, and settles it with the answer.
func (c *Client) run(ss *shardSession, p *part) {
	err := p.awaitBefore()
	if err == nil && p.queued {
		err = ss.take(context.Background(), p) // ends with the client
	}
	sent := err == nil
	if sent {
		p.index, err = c.deliver(ss, p)
	}
	p.err = err
	if p.settled.Swap(true) {
		c.lose(err) // before answered, or Flush misses it
	}
	switch {
	case errors.Is(err, errClosed): // that is no answer
	case sent:
		ss.answered(p.seq)
	default:
		rpc.Pool.Release(p.payload)
		ss.unqueue()
	}
	close(p.done)
}

// awaitBefore waits until the parts that come before p are acknowledged.
func (p *part) awaitBefore() error {
	for _, b := range p.after {
		if <-b.done; b.err != nil {
			return rowraft.Errorf(rowraft.CodeNotSent, "%s to shard %d was not sent, because an earlier part of it failed: %w", opName(p.op), p.shard, b.err)
		}
	}
	return nil
}

// deliver sends p until the shard answers or the client closes. CodeInternal says that
// this server cannot tell what became of p: whoever leads next can, so p is sent again,
// for settleTries times the bound of a try. After that the first such answer stands.
func (c *Client) deliver(ss *shardSession, p *part) (rowraft.Index, error) {
	var index uint64
	maybe, tries := false, 0
	unsure := false // a try may have been applied
	ctx, b := c.ctx, route.Backoff{}
	var broken error
	for {
		m := c.cluster.Load()
		tryMaybe, err := c.shardCall(ctx, p.cluster, p.shard, func(ctx context.Context, stub rowraftv1.TableClient) error {
			tries++
			var err error
			index, err = c.sendOnce(ctx, stub, ss, p, uint64(m.SlotsVersion))
			if err != nil && rowraft.CodeOf(err).MaybeApplied() && !sessionEnded(err) {
				unsure = true
			}
			return c.soonKnown(err, p.segments())
		})
		maybe = maybe || tryMaybe
		if err == nil {
			c.inCluster(p.cluster, func() { c.raise(p.shard, index) })
			if tries == 1 {
				// After a failed try the payload may still be in a transport's queue.
				rpc.Pool.Release(p.payload)
			}
			p.payload = nil
			return rowraft.Index(index), nil
		}
		if ws, ok := errors.AsType[*rowraft.WrongShardError](err); ok && m.SlotsVersion < ws.Want {
			c.askForMap()
			if c.pause(c.ctx, new(route.Backoff), 0) == nil {
				continue
			}
		}
		if rowraft.CodeOf(err) == rowraft.CodeInternal {
			if broken == nil {
				broken = err
				settle, cancel := context.WithTimeout(c.ctx, settleTries*c.opts.AttemptTimeout)
				defer cancel()
				ctx = settle
			}
			if c.pause(ctx, &b, 0) == nil {
				continue
			}
		}
		if sessionEnded(err) && !unsure {
			renewed := c.renew(ss, p)
			if renewed == nil {
				maybe = false
				continue
			}
			if renewed != errClosed {
				err = fmt.Errorf("%w; another session could not be opened: %w", err, renewed)
			} else {
				err = errClosed
			}
		}
		if broken != nil && ctx.Err() != nil && c.ctx.Err() == nil {
			err = broken
		}
		err = fmt.Errorf("%s to shard %d under number %d: %w", opName(p.op), p.shard, p.seq, err)
		if maybe && !rowraft.CodeOf(err).MaybeApplied() {
			err = rowraft.Errorf(rowraft.CodeUnknown, "an earlier try may have been applied: %w", err)
		}
		return 0, err
	}
}

// segments are the payload without a clock.
func (p *part) segments() []byte {
	if p.op != wire.OpClocked {
		return p.payload
	}
	_, segments, _ := wire.ParseClock(p.payload)
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

func (c *Client) sendOnce(ctx context.Context, stub rowraftv1.TableClient, ss *shardSession, p *part, slotsVersion uint64) (uint64, error) {
	if len(p.payload) >= saidFrom {
		ctx = rpc.WithPartSize(ctx, rpc.PartSize{Shard: uint32(p.shard), Bytes: len(p.payload), Delete: p.op == wire.OpDelete})
	}
	inc, floor := ss.present()
	reply, err := stub.Write(ctx, &rowraftv1.WriteRequest{
		MapVersion: slotsVersion, TableEpoch: c.session.epoch.Load(), Shard: uint32(p.shard), ClientId: c.opts.ClientID[:],
		Incarnation: inc, Seq: uint64(p.seq), Floor: floor, Op: rowraftv1.WriteOp(p.op), Payload: p.payload,
	})
	p.slowest = reply.GetSlowestClock()
	return reply.GetAppliedIndex(), err
}

// await waits for all parts. If ctx ends first their outcome is unknown, and
// they go on being resent; an error is then kept for Flush.
func (c *Client) await(ctx context.Context, parts []*part) (Ack, error) {
	ack := Ack{Parts: len(parts), Index: make(map[rowraft.ShardID]rowraft.Index, len(parts))}
	for _, p := range parts {
		select {
		case <-p.done:
		case <-ctx.Done():
			for _, p := range parts {
				if p.settled.Swap(true) {
					c.lose(p.err)
				}
			}
			return Ack{}, rowraft.Errorf(rowraft.CodeDeadline, "push not acknowledged in time, the client goes on sending it: %w", context.Cause(ctx))
		}
		ack.Index[p.shard] = max(ack.Index[p.shard], p.index)
	}
	if err := failure(parts); err != nil {
		return Ack{}, err
	}
	return ack, nil
}

// failure is the error of a push whose parts have their answers; nil if all are
// applied. Its code says of the whole push whether anything may have been applied.
func failure(parts []*part) error {
	var first error
	applied := 0
	for _, p := range parts {
		switch {
		case p.err == nil:
			applied++
		case rowraft.CodeOf(p.err).MaybeApplied():
			return p.err
		case first == nil:
			first = p.err
		}
	}
	if first == nil || applied == 0 {
		return first
	}
	return rowraft.Errorf(rowraft.CodeUnknown, "%d of %d parts were applied, the others were refused: %w", applied, len(parts), first)
}

// partial reports a push of which only the parts started were sent.
func (c *Client) partial(ctx context.Context, started []*part, err error) error {
	if _, aerr := c.await(ctx, started); len(started) == 0 || aerr != nil && !rowraft.CodeOf(aerr).MaybeApplied() {
		return err
	}
	return rowraft.Errorf(rowraft.CodeUnknown, "%d parts of the push were sent, the rest was not: %w", len(started), err)
}

// lose keeps the error of a part that nobody waits for, unless its part has no
// answer at all.
func (c *Client) lose(err error) {
	if err == nil || errors.Is(err, errClosed) {
		return
	}
	c.lost.Lock()
	defer c.lost.Unlock()
	if c.lost.err == nil {
		c.lost.err = err
	}
}

func (c *Client) takeLost() error {
	c.lost.Lock()
	defer c.lost.Unlock()
	err := c.lost.err
	c.lost.err = nil
	return err
}

// Flush waits until every part has an answer, or ctx ends, and returns nil if each
// push was acknowledged or its own call has reported why not.
//
// Errors: that of a part whose Push had returned when its answer came, the first
// since the last Flush or Push that told one; CodeDeadline when ctx ends;
// CodeUnknown if the client was closed before every part had an answer.
func (c *Client) Flush(ctx context.Context) error {
	for _, ss := range c.allSessions() {
		if err := ss.idle(ctx); err == errClosed {
			return rowraft.Errorf(rowraft.CodeUnknown, "shard %d: %w before every push was answered", ss.shard, err)
		} else if err != nil {
			return fmt.Errorf("shard %d still has unanswered pushes: %w", ss.shard, err)
		}
	}
	return c.takeLost()
}
