package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// partBytes is what a part is filled up to. One part becomes one log entry at
// most, and a full batch of 8,192 rows of dim 16 over one shard fits.
const partBytes = 1 << 20

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

func (c *Client) send(ctx context.Context, op wire.Op, segs []Segment) (Ack, error) {
	ready := make([]Segment, len(segs))
	for i := range segs {
		if err := c.checkPush(&segs[i]); err != nil {
			return Ack{}, err
		}
		ready[i] = normalize(segs[i], op)
	}
	if err := distinctTables(ready); err != nil {
		return Ack{}, err
	}
	m := c.cluster.Load()
	reqs := plan(m, ready, func(s *Segment) int { return 8 + s.Table.schema.Dim*c.opts.DType.Size() }, partBytes)
	parts := make([]*part, len(reqs))
	for i := range reqs {
		parts[i] = c.encode(op, &reqs[i])
	}
	for i, p := range parts {
		if err := c.start(ctx, p); err != nil {
			return Ack{}, c.partial(ctx, parts[:i], err)
		}
	}
	return c.await(ctx, parts)
}

func (c *Client) checkPush(s *Segment) error {
	if err := s.check(); err != nil {
		return err
	}
	d := s.Table.schema.Dim
	for i, v := range s.Values {
		if v-v != 0 {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s: key %d, dimension %d is %v: gradients and weights must be finite", s.Table.schema.Name, s.Keys[i/d], i%d, v)
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
	shard   rowraft.ShardID
	op      wire.Op
	payload []byte
	seq     rowraft.Seq

	done  chan struct{} // closed when err and index are set
	err   error
	index rowraft.Index
}

func (c *Client) encode(op wire.Op, r *request) *part {
	size := 0
	for i := range r.pieces {
		size += c.pushSegment(&r.pieces[i]).Size()
	}
	p := &part{shard: r.shard, op: op, payload: rpc.Pool.Bytes(size), done: make(chan struct{})}
	at := 0
	for i := range r.pieces {
		s := c.pushSegment(&r.pieces[i])
		body := s.Put(p.payload[at : at+s.Size()])
		r.pieces[i].putKeys(body.Keys)
		r.pieces[i].putValues(body.Values, s.DType)
		at += s.Size()
	}
	return p
}

func (c *Client) pushSegment(p *piece) wire.Segment {
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
	return s
}

// start numbers the part and begins to send it. It waits, as long as ctx allows,
// for the session and for a free place among the unacknowledged parts.
func (c *Client) start(ctx context.Context, p *part) error {
	ss, err := c.openSession(ctx, p.shard)
	if err != nil {
		return err
	}
	if err := ss.take(ctx, p); err != nil {
		return err
	}
	err = c.spawn(func() {
		p.index, p.err = c.deliver(ss, p)
		if !errors.Is(p.err, errClosed) { // that is no answer
			ss.answered(p.seq)
		}
		close(p.done)
	})
	if err != nil {
		ss.answered(p.seq) // it was not sent
	}
	return err
}

// deliver sends p until the shard answers or the client closes.
func (c *Client) deliver(ss *shardSession, p *part) (rowraft.Index, error) {
	var index uint64
	maybe, tries := false, 0
	for {
		m := c.cluster.Load()
		tryMaybe, err := c.shardCall(c.ctx, p.shard, func(ctx context.Context, stub rowraftv1.TableClient) error {
			tries++
			var err error
			index, err = c.sendOnce(ctx, stub, ss, p, uint64(m.SlotsVersion))
			return err
		})
		maybe = maybe || tryMaybe
		if err == nil {
			c.raise(p.shard, index)
			if tries == 1 {
				// After a failed try the payload may still be in a transport's queue.
				rpc.Pool.Release(p.payload)
			}
			p.payload = nil
			return rowraft.Index(index), nil
		}
		if ws, ok := errors.AsType[*rowraft.WrongShardError](err); ok && m.SlotsVersion < ws.Want {
			c.askForMap()
			b := backoff{}
			if c.pause(c.ctx, &b, 0) == nil {
				continue
			}
		}
		err = fmt.Errorf("%s to shard %d under number %d: %w", opName(p.op), p.shard, p.seq, err)
		if maybe && !rowraft.CodeOf(err).MaybeApplied() {
			err = rowraft.Errorf(rowraft.CodeUnknown, "an earlier try may have been applied: %w", err)
		}
		return 0, err
	}
}

func opName(op wire.Op) string {
	if op == wire.OpAssign {
		return "assign"
	}
	return "push"
}

func (c *Client) sendOnce(ctx context.Context, stub rowraftv1.TableClient, ss *shardSession, p *part, slotsVersion uint64) (uint64, error) {
	if p.op == wire.OpAssign {
		reply, err := stub.Assign(ctx, &rowraftv1.AssignRequest{
			MapVersion: slotsVersion, Shard: uint32(p.shard), ClientId: c.opts.ClientID[:],
			Incarnation: uint64(ss.inc), Seq: uint64(p.seq), Floor: uint64(ss.floorNow()), Payload: p.payload,
		})
		return reply.GetAppliedIndex(), err
	}
	reply, err := stub.Push(ctx, &rowraftv1.PushRequest{
		MapVersion: slotsVersion, Shard: uint32(p.shard), ClientId: c.opts.ClientID[:],
		Incarnation: uint64(ss.inc), Seq: uint64(p.seq), Floor: uint64(ss.floorNow()), Payload: p.payload,
	})
	return reply.GetAppliedIndex(), err
}

// await waits for all parts. If ctx ends first their outcome is unknown, and
// they go on being resent.
func (c *Client) await(ctx context.Context, parts []*part) (Ack, error) {
	ack := Ack{Parts: len(parts), Index: make(map[rowraft.ShardID]rowraft.Index, len(parts))}
	var first error
	for _, p := range parts {
		select {
		case <-p.done:
		case <-ctx.Done():
			return Ack{}, rowraft.Errorf(rowraft.CodeDeadline, "push not acknowledged in time, the client goes on resending it: %w", context.Cause(ctx))
		}
		if p.err != nil && first == nil {
			first = p.err
		}
		ack.Index[p.shard] = max(ack.Index[p.shard], p.index)
	}
	if first != nil {
		return Ack{}, first
	}
	return ack, nil
}

// partial reports a push of which only the parts started were sent.
func (c *Client) partial(ctx context.Context, started []*part, err error) error {
	if len(started) == 0 {
		return err
	}
	_, _ = c.await(ctx, started)
	return rowraft.Errorf(rowraft.CodeUnknown, "%d parts of the push were sent, the rest was not: %w", len(started), err)
}

// Flush waits until no part is without an answer, or ctx ends. Parts that a Close
// beside it left without one are an error too.
func (c *Client) Flush(ctx context.Context) error {
	for shard := range c.session.shards {
		ss := c.session.shards[shard].Load()
		if ss == nil {
			continue
		}
		if err := ss.idle(ctx); err == errClosed {
			return rowraft.Errorf(rowraft.CodeUnknown, "shard %d: %w before every push was answered", shard, err)
		} else if err != nil {
			return fmt.Errorf("shard %d still has unanswered pushes: %w", shard, err)
		}
	}
	return nil
}
