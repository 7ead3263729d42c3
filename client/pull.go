package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// pullLimit bounds one PullRequest: the largest payload that a server takes, and a reply small
// enough not to delay others on the connection.
var pullLimit = load{sent: rowraft.MaxEntryBytes, received: 8 << 20}

func planPull(m *clustermap.Map, segs []Segment, dtype rowraft.DType) []request {
	perRow := func(s *Segment) load {
		per, flags := load{sent: 8, received: s.Table.schema.Dim * dtype.Size()}, s.versionFlags()
		if flags&wire.FlagKnown != 0 {
			per.sent += wire.VersionBytes
		}
		if flags&wire.FlagVersions != 0 {
			per.received += wire.VersionBytes
		}
		return per
	}
	return plan(m, segs, perRow, pullLimit)
}

// Pull fills the Values (and Present) of all segments, as Table.Pull does for one. Each row is complete, and none is
// older than this client's last acknowledged push, but for copies (Segment.Reuse). The rows are not from one moment,
// also not those of one shard: a pull concurrent with a push may see some of its rows changed and others not yet.
func (c *Client) Pull(ctx context.Context, segs ...Segment) error {
	_, err := c.PullWith(ctx, Read{}, segs...)
	return err
}

// PullLinearizable is a Pull that sees, in each shard, every push that was acknowledged to
// any client before the call: the leader proves that it still leads, at the price of one
// round to a majority. Rows may come from different moments within the call.
func (c *Client) PullLinearizable(ctx context.Context, segs ...Segment) error {
	_, err := c.PullWith(ctx, Read{Mode: Linearizable}, segs...)
	return err
}

// PullWith is Pull in any mode. It returns how fresh the rows of a bounded read were, copies apart.
//
// Errors: CodeTooStale (a TooStaleError with the freshness that was found) when every replica
// of a shard was asked and none of those that answered meets the bound; otherwise as Pull,
// which tries until ctx ends.
func (c *Client) PullWith(ctx context.Context, how Read, segs ...Segment) (Freshness, error) {
	if err := how.check(); err != nil {
		return Freshness{}, err
	}
	if err := c.current(&how.AtLeast); err != nil {
		return Freshness{}, err
	}
	for i := range segs {
		if err := segs[i].check(0); err != nil {
			return Freshness{}, err
		}
		if how.Mode == Linearizable && segs[i].Reuse != (Reuse{}) {
			return Freshness{}, rowraft.Errorf(rowraft.CodeInvalidArgument,
				"a linearizable read of table %s with Reuse: a copy may be older", segs[i].Table.schema.Name)
		}
	}
	if how.Mode == Bounded {
		how.turn = c.spread.Next(how.MaxLag == 0 && !wantsPresence(segs))
	}
	if c.opts.CacheBytes == 0 {
		got, err := c.pull(ctx, &how, segs)
		return got.met, err
	}
	return c.pullReusing(ctx, &how, segs)
}

func wantsPresence(segs []Segment) bool {
	return slices.ContainsFunc(segs, func(s Segment) bool { return s.Present != nil })
}

// pulled is what the replies to a pull report.
type pulled struct {
	met   Freshness
	epoch rowraft.TableEpoch // the newest; 0 without replies
	mixed bool               // replies have different epochs: a restore is under way
}

// pull gets the rows of segs from servers.
func (c *Client) pull(ctx context.Context, how *Read, segs []Segment) (pulled, error) {
	var b route.Backoff
	for {
		m := c.cluster.Load()
		if err := ofCluster(m, segs); err != nil {
			return pulled{}, err
		}
		reqs := planPull(m, segs, c.opts.DType)
		err := c.pullAll(ctx, m, how, reqs)
		if err == nil {
			return tellApplied(segs, reqs), nil
		}
		ws, moved := errors.AsType[*rowraft.WrongShardError](err)
		if !moved || m.SlotsVersion >= ws.Want {
			return pulled{}, err // a newer map would not help
		}
		// The map was old: wait for the newer one and split again. Rows that have come are not those that the versions of
		// the copies were of.
		for i := range segs {
			if segs[i].part != nil {
				segs[i].part.known = false
			}
		}
		c.cluster.askForMap()
		if werr := c.pause(ctx, &b, 0); werr != nil {
			return pulled{}, fmt.Errorf("waiting for map version %d: %w", ws.Want, err)
		}
	}
}

// tellApplied sets Applied of segs from the replies to reqs, and returns what these report.
func tellApplied(segs []Segment, reqs []request) (got pulled) {
	for i := range segs {
		clear(segs[i].Applied)
	}
	for _, r := range reqs {
		got.met.Age, got.met.Lag = max(got.met.Age, r.met.Age), max(got.met.Lag, r.met.Lag)
		got.epoch, got.mixed = max(got.epoch, r.epoch), got.mixed || r.epoch != reqs[0].epoch
		for _, p := range r.segments {
			if p.seg.part != nil {
				p.seg.part.unchanged += p.unchanged
			}
			if p.seg.Applied == nil {
				continue
			}
			if other, ok := p.seg.Applied[r.shard]; !ok || r.applied < other {
				p.seg.Applied[r.shard] = r.applied
			}
		}
	}
	return got
}

// pullRequest returns the message of r. Its payload is from the pool.
func (c *Client) pullRequest(m *clustermap.Map, how *Read, r *request) *rowraftv1.PullRequest {
	req := &rowraftv1.PullRequest{MapVersion: uint64(m.SlotsVersion), Shard: uint32(r.shard),
		Payload: r.encode(0, c.opts.DType)}
	for _, p := range r.segments {
		req.Presence = req.Presence || p.seg.Present != nil
		if p.seg.part != nil && p.seg.part.known {
			req.KnownEpoch = uint64(p.seg.part.epoch)
		}
	}
	c.askFor(req, how, r.shard)
	return req
}

// take copies the reply to a pull, which had so many tries, into the caller's segments.
func (c *Client) take(r *request, req *rowraftv1.PullRequest, reply *rowraftv1.PullReply, tries int, err error) error {
	if err != nil {
		return fmt.Errorf("pull from shard %d: %w", r.shard, err)
	}
	if reply.WithoutReplica {
		keys := 0
		for _, p := range r.segments {
			keys += len(p.rows)
		}
		c.spread.Copied(keys, int(reply.Fetched))
	}
	if tries == 1 {
		// After a failed try the payload may still be in a transport's queue.
		rpc.Pool.Release(req.Payload)
	}
	r.epoch = rowraft.TableEpoch(reply.TableEpoch)
	r.applied, r.met = rowraft.Index(reply.AppliedIndex), Freshness{time.Duration(reply.AgeNs), reply.Lag}
	err = r.scatter(reply.Payload, c.opts.DType, req.Presence)
	rpc.Pool.Release(reply.Payload)
	return err
}

// scatter checks the reply and copies its rows into the caller's segments.
func (r *request) scatter(payload []byte, dtype rowraft.DType, presence bool) error {
	for i := range r.segments {
		p := &r.segments[i]
		want := p.header(0, dtype)
		got, body, rest, err := wire.ParseSegment(payload)
		if err != nil {
			return rowraft.Errorf(rowraft.CodeCorrupt, "reply of shard %d: %w", r.shard, err)
		}
		flags := wire.FlagNoKeys | got.Flags&want.Flags&wire.FlagVersions // a server may know no versions
		if presence {
			flags |= wire.FlagPresence
		}
		if got.Table != want.Table || got.N != want.N || got.Dim != want.Dim || got.DType != want.DType ||
			got.Flags != flags || got.Unchanged > 0 && want.Flags&wire.FlagKnown == 0 {
			return rowraft.Errorf(rowraft.CodeCorrupt, "reply of shard %d: a segment has %d rows of table %d with %d %s and "+
				"flags %#x, the request asks for %d rows of table %d with %d %s",
				r.shard, got.N, got.Table, got.Dim, got.DType, got.Flags, want.N, want.Table, want.Dim, want.DType)
		}
		if got.Flags&wire.FlagVersions != 0 {
			p.getVersions(got, body)
		} else {
			p.getValues(body.Values, got.DType)
			if want.Flags&wire.FlagVersions != 0 {
				for _, row := range p.rows {
					p.seg.part.versions[row] = wire.NoVersion
				}
			}
		}
		if p.seg.Present != nil {
			for j, row := range p.rows {
				p.seg.Present[row] = body.Presence[j/8]>>(j%8)&1 != 0
			}
		}
		payload = rest
	}
	if len(payload) > 0 {
		return rowraft.Errorf(rowraft.CodeCorrupt, "reply of shard %d: %d bytes follow the last segment: want none", r.shard,
			len(payload))
	}
	return nil
}
