package client

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// pullLimit bounds one pull: what a server takes, and a reply that does not hold up
// the others.
var pullLimit = load{sent: rowraft.MaxEntryBytes, received: 8 << 20}

func (c *Client) planPull(m *clustermap.Map, segs []Segment) []request {
	return plan(m, segs, func(s *Segment) load { return load{sent: 8, received: s.Table.schema.Dim * c.opts.DType.Size()} }, pullLimit)
}

// Pull fills the Values (and Present) of all segments, as Table.Pull does for
// one. Each row is whole, and none is older than this client's last acknowledged
// push. Rows are not from one moment, also not those of one shard: a pull beside
// a push may see some of its rows changed and others not yet.
func (c *Client) Pull(ctx context.Context, segs ...Segment) error {
	return c.pull(ctx, rowraftv1.ReadMode_READ_MODE_LEADER, segs)
}

// PullLinearizable is Pull that sees, of each shard, every push that anybody had
// been told of before it was called: the leader proves that it still leads, at the
// price of one round to a majority. Rows may come from different moments within
// the call.
func (c *Client) PullLinearizable(ctx context.Context, segs ...Segment) error {
	return c.pull(ctx, rowraftv1.ReadMode_READ_MODE_LINEARIZABLE, segs)
}

func (c *Client) pull(ctx context.Context, mode rowraftv1.ReadMode, segs []Segment) error {
	for i := range segs {
		if err := segs[i].check(0); err != nil {
			return err
		}
	}
	b := backoff{}
	for {
		m := c.cluster.Load()
		reqs := c.planPull(m, segs)
		err := each(len(reqs), func(i int) error { return c.pullShard(ctx, m, mode, &reqs[i]) })
		if err == nil {
			tellApplied(segs, reqs)
			return nil
		}
		ws, moved := errors.AsType[*rowraft.WrongShardError](err)
		if !moved || m.SlotsVersion >= ws.Want {
			return err // a newer map would not help
		}
		// The map was old: wait for the newer one and split again.
		c.askForMap()
		if werr := c.pause(ctx, &b, 0); werr != nil {
			return fmt.Errorf("waiting for map version %d: %w", ws.Want, err)
		}
	}
}

// tellApplied sets Applied of segs from the replies to reqs.
func tellApplied(segs []Segment, reqs []request) {
	for i := range segs {
		clear(segs[i].Applied)
	}
	for _, r := range reqs {
		for _, p := range r.pieces {
			if p.seg.Applied == nil {
				continue
			}
			if other, ok := p.seg.Applied[r.shard]; !ok || r.applied < other {
				p.seg.Applied[r.shard] = r.applied
			}
		}
	}
}

// Prefetch starts a Pull and returns a function that waits for it. The segments
// must not be touched before it returns.
func (c *Client) Prefetch(ctx context.Context, segs ...Segment) (wait func() error) {
	done := make(chan error, 1)
	go func() { done <- c.Pull(ctx, segs...) }()
	return func() error { return <-done }
}

// each runs f(0 … n-1) at once, the last one on this goroutine, and returns the
// first error by number.
func each(n int, f func(int) error) error {
	if n == 0 {
		return nil
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n - 1 {
		wg.Go(func() { errs[i] = f(i) })
	}
	errs[n-1] = f(n - 1)
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Client) pullShard(ctx context.Context, m *clustermap.Map, mode rowraftv1.ReadMode, r *request) error {
	size, presence := 0, false
	for i := range r.pieces {
		size += c.pullSegment(&r.pieces[i]).Size()
		presence = presence || r.pieces[i].seg.Present != nil
	}
	payload := rpc.Pool.Bytes(size)
	at := 0
	for i := range r.pieces {
		s := c.pullSegment(&r.pieces[i])
		body := s.Put(payload[at : at+s.Size()])
		r.pieces[i].putKeys(body.Keys)
		at += s.Size()
	}
	req := &rowraftv1.PullRequest{
		MapVersion: uint64(m.SlotsVersion),
		Shard:      uint32(r.shard),
		Mode:       mode,
		TableEpoch: c.session.epoch.Load(), // that the index is of
		MinIndex:   c.acked[r.shard].Load(),
		Payload:    payload,
		Presence:   presence,
	}
	var reply *rowraftv1.PullReply
	tries := 0
	_, err := c.shardCall(ctx, r.shard, func(ctx context.Context, stub rowraftv1.TableClient) (err error) {
		tries++
		reply, err = stub.Pull(ctx, req)
		return c.soonKnown(err, payload)
	})
	if err != nil {
		return fmt.Errorf("pull from shard %d: %w", r.shard, err)
	}
	if tries == 1 {
		// After a failed try the payload may still be in a transport's queue.
		rpc.Pool.Release(payload)
	}
	r.applied = rowraft.Index(reply.AppliedIndex)
	err = c.scatter(r, reply.Payload, presence)
	rpc.Pool.Release(reply.Payload)
	return err
}

func (c *Client) pullSegment(p *piece) wire.Segment {
	return wire.Segment{
		Table: p.seg.Table.schema.ID,
		N:     len(p.rows),
		Dim:   p.seg.Table.schema.Dim,
		DType: c.opts.DType,
		Flags: wire.FlagNoValues,
	}
}

// scatter copies the reply's rows to where the caller wants them.
func (c *Client) scatter(r *request, payload []byte, presence bool) error {
	for i := range r.pieces {
		p := &r.pieces[i]
		want := c.pullSegment(p)
		got, body, rest, err := wire.ParseSegment(payload)
		if err != nil {
			return rowraft.Errorf(rowraft.CodeCorrupt, "reply of shard %d: %w", r.shard, err)
		}
		if got.Table != want.Table || got.N != want.N || got.Dim != want.Dim || got.DType != want.DType ||
			got.Flags&^wire.FlagPresence != wire.FlagNoKeys || presence != (got.Flags&wire.FlagPresence != 0) {
			return rowraft.Errorf(rowraft.CodeCorrupt, "reply of shard %d: segment %+v does not answer %+v", r.shard, got, want)
		}
		p.getValues(body.Values, got.DType)
		if p.seg.Present != nil {
			for j, row := range p.rows {
				p.seg.Present[row] = body.Presence[j/8]>>(j%8)&1 != 0
			}
		}
		payload = rest
	}
	if len(payload) > 0 {
		return rowraft.Errorf(rowraft.CodeCorrupt, "reply of shard %d: %d bytes follow the answer", r.shard, len(payload))
	}
	return nil
}
