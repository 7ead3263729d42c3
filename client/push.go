package client

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/wave"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/route"
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
	return c.write(ctx, wire.OpPush, segs...)
}

// Assign sets the weights of all segments, as Table.Assign does for one.
func (c *Client) Assign(ctx context.Context, segs ...Segment) (Ack, error) {
	return c.write(ctx, wire.OpAssign, segs...)
}

// Delete removes the rows of all segments, as Table.Delete does for one. Their
// Values must be empty.
func (c *Client) Delete(ctx context.Context, segs ...Segment) (Ack, error) {
	return c.write(ctx, wire.OpDelete, segs...)
}

// write is Push, Assign or Delete.
func (c *Client) write(ctx context.Context, op wire.Op, segs ...Segment) (Ack, error) {
	batches, err := c.cutBatches(op, segs)
	if err != nil {
		return Ack{}, err
	}
	return c.sendBatches(ctx, batches)
}

// cutBatches checks segs and cuts them into batches without numbers. It returns the deferred error of an
// earlier push, if there is one, and then nothing is sent. If FailWhenOverloaded is set, it refuses the push
// while batches of earlier pushes wait for the retry budget.
func (c *Client) cutBatches(op wire.Op, segs []Segment) ([]*batch, error) {
	if err := c.deferred.take(); err != nil {
		return nil, rowraft.Errorf(rowraft.CodePrecondition,
			"nothing of this %s was sent, because an earlier push failed after its caller had returned: %w", opName(op), err)
	}
	if waiting := c.router.budget.Waiting(); waiting > 0 && c.opts.FailWhenOverloaded {
		return nil,
			route.SpentError(fmt.Errorf("%d batches of earlier pushes wait to be sent again, nothing of this one was sent",
				waiting))
	}
	m := c.cluster.Load()
	reqs, err := planPush(m, op, segs, c.opts.DType)
	if err != nil {
		return nil, err
	}
	batches := make([]*batch, len(reqs))
	for i := range reqs {
		batches[i] = &batch{cluster: m.Cluster, shard: reqs[i].shard, op: op, payload: reqs[i].encode(op, c.opts.DType),
			done: make(chan struct{})}
	}
	return batches, nil
}

// sendBatches numbers and sends batches and waits for their results. Once the first one has
// a number, every other one is sent too, so that no push is left half sent: if ctx ends before
// a batch has a number, the batch is queued and gets its number later.
//
// Batches that get their numbers without a wait are sent together. They are sent before sendBatches waits for the
// number of the next batch: that number may be free only after some of them have results.
func (c *Client) sendBatches(ctx context.Context, batches []*batch) (Ack, error) {
	if err := c.sessions.openAll(ctx, batches); err != nil {
		return Ack{}, err
	}
	for sent := 0; sent < len(batches); {
		n, err := c.number(ctx, batches[sent:], sent > 0)
		tries := wave.New(c.ctx, c.spawn, &wave.Writes, n)
		for i, b := range batches[sent : sent+n] {
			c.start(b, tries[i])
		}
		if sent += n; err != nil && sent == 0 {
			return Ack{}, err
		} else if err != nil {
			for _, b := range batches[sent:] {
				b.notSent(err)
			}
			break
		}
	}
	return c.results(ctx, batches)
}

// planPush checks segs and cuts them into requests with strictly ascending keys (wire.Ascending).
func planPush(m *clustermap.Map, op wire.Op, segs []Segment, dtype rowraft.DType) ([]request, error) {
	ready := make([]Segment, len(segs))
	for i := range segs {
		if err := segs[i].check(op); err != nil {
			return nil, err
		}
		schema := &segs[i].Table.schema
		keys, values := wire.Ascending(op, segs[i].Keys, segs[i].Values, schema.Dim)
		ready[i] = Segment{Table: segs[i].Table, Keys: keys, Values: values, LR: segs[i].LR}
		// After Ascending: a sum of finite gradients may be infinite.
		if err := wire.CheckNumbers(schema.Name, keys, values, schema.Dim, segs[i].LR, dtype); err != nil {
			return nil, err
		}
		for j := range i {
			if segs[i].Table == segs[j].Table {
				return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s has two segments in one push: merge them",
					segs[i].Table.schema.Name)
			}
		}
	}
	if err := ofCluster(m, ready); err != nil {
		return nil, err
	}
	perRow := func(s *Segment) load { return load{sent: 8 + s.Table.schema.Dim*dtype.Size()} }
	if op == wire.OpDelete {
		perRow = func(*Segment) load { return load{sent: 8} }
	}
	return plan(m, ready, perRow, load{sent: batchBytes}), nil
}

// results waits for the results of all batches. If ctx ends first, the outcome is unknown. The client continues
// to send the batches, and Flush returns the first error of one.
//
// The code of the error reports whether any batch may have been applied: an error whose code says so comes before
// others, and if only some batches were applied the code is CodeUnknown.
func (c *Client) results(ctx context.Context, batches []*batch) (Ack, error) {
	ack := Ack{Batches: len(batches), Index: make(map[rowraft.ShardID]rowraft.Index, len(batches))}
	var failed error
	applied := 0
	for _, b := range batches {
		select {
		case <-b.done:
		case <-ctx.Done():
			for _, b := range batches {
				if b.settled.Swap(true) {
					c.deferred.put(b.err)
				}
			}
			return Ack{}, rowraft.Errorf(rowraft.CodeDeadline,
				"push not acknowledged in time, the client continues to send it: %w", context.Cause(ctx))
		}
		switch {
		case b.err == nil:
			applied++
			ack.Index[b.shard] = max(ack.Index[b.shard], b.index)
		case failed == nil || rowraft.CodeOf(b.err).MaybeApplied() && !rowraft.CodeOf(failed).MaybeApplied():
			failed = b.err
		}
	}
	switch {
	case failed == nil:
		return ack, nil
	case applied == 0 || rowraft.CodeOf(failed).MaybeApplied():
		return Ack{}, failed
	}
	return Ack{}, rowraft.Errorf(rowraft.CodeUnknown,
		"%d of %d batches were applied, the others were refused or not sent: %w", applied, len(batches), failed)
}

// deferred is the first error of a batch whose Push had returned before the result came. The next Push or
// Flush returns it.
type deferred struct {
	mu  sync.Mutex
	err error
}

// put stores err if it is the first. errClosed is no result: Flush finds that the number still has none.
func (d *deferred) put(err error) {
	if err == nil || errors.Is(err, errClosed) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		d.err = err
	}
}

// take returns the stored error and clears it.
func (d *deferred) take() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.err
	d.err = nil
	return err
}

// Flush waits until every batch has ended, or ctx ends, and returns nil if each
// push was acknowledged or its own call has reported why not.
//
// Errors: the first error of a batch whose Push had returned before the result came, unless
// an earlier Flush or Push returned it; CodeDeadline when ctx ends;
// CodeUnknown if the client was closed before every batch had ended.
func (c *Client) Flush(ctx context.Context) error {
	for _, ss := range c.sessions.all() {
		if err := ss.idle(ctx); err == errClosed {
			return rowraft.Errorf(rowraft.CodeUnknown, "shard %d: %w before every push was answered", ss.shard, err)
		} else if err != nil {
			return fmt.Errorf("shard %d still has unanswered pushes: %w", ss.shard, err)
		}
	}
	return c.deferred.take()
}
