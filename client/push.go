package client

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/wire"
)

// batchBytes is the size up to which plan fills a batch: 8,192 rows of dim 16 in one shard
// fit. A batch is never split over log entries; a server may log several in one entry.
const batchBytes = 1 << 20

// Ack describes an acknowledged push.
type Ack struct {
	Batches int // how many batches the push was cut into, each for one shard

	// Index has, for each shard of the push, an index at which the push is visible there.
	Index map[rowraft.ShardID]rowraft.Index
}

// Push applies the gradients of all segments, as Table.Push does for one. Segments of different tables with
// rows in one shard share a batch while it has room (1 MiB).
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
	batches, err := c.batches(op, segs)
	if err != nil {
		return Ack{}, err
	}
	return c.sendBatches(ctx, batches)
}

// batches checks segs and cuts them into batches without numbers. It returns the deferred
// error of an earlier push, if there is one, and then nothing is sent.
func (c *Client) batches(op wire.Op, segs []Segment) ([]*batch, error) {
	if err := c.takeDeferred(); err != nil {
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "nothing of this %s was sent, because an earlier push failed after its caller had returned: %w", opName(op), err)
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
	reqs := plan(m, ready, perRow, load{sent: batchBytes})
	batches := make([]*batch, len(reqs))
	for i := range reqs {
		batches[i] = c.encode(op, &reqs[i])
		batches[i].cluster = m.Cluster
	}
	return batches, nil
}

// sendBatches numbers and sends batches and waits for their results. Once the first one has
// a number, every other one is sent too, so that no push is left half sent: if ctx ends before
// a batch has a number, the batch is queued and gets its number later.
func (c *Client) sendBatches(ctx context.Context, batches []*batch) (Ack, error) {
	if err := c.openSessions(ctx, batches); err != nil {
		return Ack{}, err
	}
	var together *sharedWrites
	if len(batches) > 1 {
		together = &sharedWrites{c: c, calls: &writes}
	}
	for i, p := range batches {
		if err := c.start(ctx, p, i > 0, together); err != nil {
			together.start()
			return Ack{}, c.partial(ctx, batches[:i], err)
		}
	}
	together.start()
	return c.await(ctx, batches)
}

// admitPush refuses a new push if FailWhenOverloaded is set and batches of earlier pushes wait for the
// retry budget. Nothing of the new push was sent.
func (c *Client) admitPush() error {
	if waiting := c.budget.Waiting(); waiting > 0 && c.opts.FailWhenOverloaded {
		return route.SpentError(fmt.Errorf("%d batches of earlier pushes wait to be sent again, nothing of this one was sent", waiting))
	}
	return nil
}

// prepare checks segs and returns them with strictly ascending keys (see normalize).
func (c *Client) prepare(op wire.Op, segs []Segment) ([]Segment, error) {
	ready := make([]Segment, len(segs))
	for i := range segs {
		if err := segs[i].check(op); err != nil {
			return nil, err
		}
		ready[i] = normalize(segs[i], op)
		if err := c.checkPush(&ready[i]); err != nil { // after normalize: a sum of finite gradients may be infinite
			return nil, err
		}
	}
	return ready, distinctTables(ready)
}

// infinite32 and infinite16 are the bits, without sign, of the smallest value that is not finite: as
// float32, and after rounding to bfloat16.
const (
	infinite32 = 0x7f800000
	infinite16 = 0x7f7f8000
)

// checkPush refuses numbers that a shard would refuse. The shard would be too late: it refuses
// one batch, while other batches of the push may be applied already.
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
				return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s has two segments in one push: merge them", segs[i].Table.schema.Name)
			}
		}
	}
	return nil
}

// encode writes the payload of a request (docs/formats/payload.md) into a batch.
func (c *Client) encode(op wire.Op, r *request) *batch {
	size := 0
	for i := range r.pieces {
		size += c.pushSegment(op, &r.pieces[i]).Size()
	}
	p := &batch{shard: r.shard, op: op, payload: rpc.Pool.Bytes(size), done: make(chan struct{})}
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

// await waits for all batches. If ctx ends first, the outcome is unknown. The client continues
// to send the batches, and Flush returns the first error of one.
func (c *Client) await(ctx context.Context, batches []*batch) (Ack, error) {
	ack := Ack{Batches: len(batches), Index: make(map[rowraft.ShardID]rowraft.Index, len(batches))}
	for _, p := range batches {
		select {
		case <-p.done:
		case <-ctx.Done():
			for _, p := range batches {
				if p.settled.Swap(true) {
					c.deferError(p.err)
				}
			}
			return Ack{}, rowraft.Errorf(rowraft.CodeDeadline, "push not acknowledged in time, the client continues to send it: %w", context.Cause(ctx))
		}
		ack.Index[p.shard] = max(ack.Index[p.shard], p.index)
	}
	if err := failure(batches); err != nil {
		return Ack{}, err
	}
	return ack, nil
}

// failure returns the error of a push whose batches have ended, nil if all are applied. Its
// code reports whether any batch of the push may have been applied.
func failure(batches []*batch) error {
	var first error
	applied := 0
	for _, p := range batches {
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
	return rowraft.Errorf(rowraft.CodeUnknown, "%d of %d batches were applied, the others were refused: %w", applied, len(batches), first)
}

// partial returns the error of a push of which only the batches in started were sent, after
// it has waited for them.
func (c *Client) partial(ctx context.Context, started []*batch, err error) error {
	if _, aerr := c.await(ctx, started); len(started) == 0 || aerr != nil && !rowraft.CodeOf(aerr).MaybeApplied() {
		return err
	}
	return rowraft.Errorf(rowraft.CodeUnknown, "%d batches of the push were sent, the others were not: %w", len(started), err)
}

// deferError stores the error of a batch whose caller has returned, for Flush or the next
// Push. errClosed is no result: Flush finds that the number still has none.
func (c *Client) deferError(err error) {
	if err == nil || errors.Is(err, errClosed) {
		return
	}
	c.deferred.Lock()
	defer c.deferred.Unlock()
	if c.deferred.err == nil {
		c.deferred.err = err
	}
}

// takeDeferred returns the stored error and clears it.
func (c *Client) takeDeferred() error {
	c.deferred.Lock()
	defer c.deferred.Unlock()
	err := c.deferred.err
	c.deferred.err = nil
	return err
}

// Flush waits until every batch has ended, or ctx ends, and returns nil if each
// push was acknowledged or its own call has reported why not.
//
// Errors: the first error of a batch whose Push had returned before the result came, unless
// an earlier Flush or Push returned it; CodeDeadline when ctx ends;
// CodeUnknown if the client was closed before every batch had ended.
func (c *Client) Flush(ctx context.Context) error {
	for _, ss := range c.allSessions() {
		if err := ss.idle(ctx); err == errClosed {
			return rowraft.Errorf(rowraft.CodeUnknown, "shard %d: %w before every push was answered", ss.shard, err)
		} else if err != nil {
			return fmt.Errorf("shard %d still has unanswered pushes: %w", ss.shard, err)
		}
	}
	return c.takeDeferred()
}
