package replica

import (
	"context"
	"errors"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/canary"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/node/admit"
	"github.com/rowraft/rowraft/node/freshness"
	"github.com/rowraft/rowraft/node/traffic"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/shard"
)

// leadReadTimeout is how long a pull waits for its minimum index.
const leadReadTimeout = time.Second

// boundedPatience bounds how long a replica waits to become fresh enough for a bounded read.
// It is short, because another replica may be fresh enough already.
const boundedPatience = 300 * time.Millisecond

// maxAhead is how far beyond the log of a replica a bounded read may ask, in entries. A replica may lag,
// but not by the writes of days: an index beyond that is an error of the caller.
const maxAhead = 1 << 32

// pulled is the result of a pull.
type pulled struct {
	payload []byte
	at      shard.Position
	age     time.Duration // for a bounded read: the age and lag of the rows
	lag     uint64
}

// Pull reads rows of one shard in the mode that the request names.
func (s *tableService) Pull(ctx context.Context, req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
	call := s.h.traffic.Begin(traffic.Pull, req.Payload)
	reply, err := s.pull(ctx, req)
	call.Replied(reply.GetPayload())
	call.End(err)
	return reply, err
}

func (s *tableService) pull(ctx context.Context, req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
	defer rpc.Pool.Release(req.Payload)
	r, err := s.h.replicaFor(req.Shard, req.MapVersion, req.TableEpoch)
	if _, elsewhere := errors.AsType[*rowraft.NotLeaderError](err); elsewhere &&
		req.Mode == rowraftv1.ReadMode_READ_MODE_BOUNDED {
		reply, err := s.h.copies.Pull(ctx, req)
		if err == nil {
			s.h.heatOf(rowraft.ShardID(req.Shard)).Add(req.Payload, false)
		}
		return reply, err
	}
	if err != nil {
		return nil, err
	}
	reply, err := r.pull(ctx, req)
	if err == nil {
		r.heat.Add(req.Payload, false)
	}
	return reply, err
}

// pullsAtOnce reports whether a pull waits for nothing: no other server, no entry and no disk.
func (s *tableService) pullsAtOnce(req *rowraftv1.PullRequest) bool {
	r := s.h.replica(rowraft.ShardID(req.Shard))
	if r == nil || !r.machine.InMemory() {
		return false
	}
	if req.Mode == rowraftv1.ReadMode_READ_MODE_BOUNDED {
		return req.MaxAgeNs > 0 && r.machine.AppliedIndex() >= rowraft.Index(req.MinIndex) && r.maySpeak() == nil &&
			r.fresh.Meets(boundOf(req))
	}
	return r.leadsNow(req)
}

// boundOf returns the bound of a bounded read.
func boundOf(req *rowraftv1.PullRequest) freshness.Bound {
	return freshness.Bound{MaxAge: time.Duration(min(req.MaxAgeNs, uint64(maxMaxAge))), MaxLag: req.MaxLag}
}

// leadsNow reports whether this replica answers a read as the leader, and has applied all that the read must see.
func (r *replica) leadsNow(req *rowraftv1.PullRequest) bool {
	return req.Mode <= rowraftv1.ReadMode_READ_MODE_LEADER && r.machine.AppliedIndex() >= rowraft.Index(req.MinIndex) &&
		r.mustServe() == nil
}

// pull reads rows of this replica in the mode that the request names. The caller releases the payload of req.
func (r *replica) pull(ctx context.Context, req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
	t, err := r.admitPull(ctx, req)
	if err != nil {
		return nil, err
	}
	var got pulled
	switch req.Mode {
	case rowraftv1.ReadMode_READ_MODE_UNSPECIFIED, rowraftv1.ReadMode_READ_MODE_LEADER,
		rowraftv1.ReadMode_READ_MODE_LINEARIZABLE:
		got, err = r.pullAsLeader(ctx, req, t)
	case rowraftv1.ReadMode_READ_MODE_BOUNDED:
		got, err = r.pullBounded(ctx, req, t)
	default:
		err = rowraft.Errorf(rowraft.CodeInvalidArgument, "read mode %d: want leader, linearizable or bounded", req.Mode)
	}
	if err == nil {
		if _, err = r.mayTouch(ctx, req.Payload); err != nil { // again: admitPull may not have known the table
			rpc.Pool.Release(got.payload)
		}
	}
	if err != nil {
		t.Release()
		return nil, err
	}
	t.Shrink(len(got.payload)) // the request's bytes are released on return
	admit.KeepUntilTaken(ctx, t)
	return &rowraftv1.PullReply{
		TableEpoch: uint64(got.at.Epoch), AppliedIndex: uint64(got.at.Applied), Payload: got.payload, AgeNs: uint64(got.age),
		Lag: got.lag,
	}, nil
}

// admitPull checks a pull and counts the bytes of the request and of the reply. It does so on arrival,
// because a pull may wait for a second and is in memory during that time. If this replica does not know
// a table, which may be created while the pull waits, pullRows counts the reply.
func (r *replica) admitPull(ctx context.Context, req *rowraftv1.PullRequest) (*admit.Ticket, error) {
	if _, err := r.mayTouch(ctx, req.Payload); err != nil {
		return nil, err
	}
	size, err := r.machine.ReplySize(req.Payload, req.Presence)
	if err != nil && rowraft.CodeOf(err) != rowraft.CodeTableNotFound {
		return nil, err
	}
	return r.admit.Admit(ctx, r.shard, admit.Pull, len(req.Payload)+size)
}

// maxMaxAge is a year: long enough for any age, and products of it do not overflow.
const maxMaxAge = 365 * 24 * time.Hour

// pullAsLeader answers a read as the leader, not before the index that the request names is applied.
func (r *replica) pullAsLeader(ctx context.Context, req *rowraftv1.PullRequest,
	t *admit.Ticket) (got pulled, err error) {
	if canary.Is(canary.StaleReads) && knowsNoOtherLeader(r.group) {
		return r.pullRows(req, t)
	}
	if r.leadsNow(req) {
		return r.pullRows(req, t) // no timer
	}
	minIndex, linearizable := rowraft.Index(req.MinIndex), req.Mode == rowraftv1.ReadMode_READ_MODE_LINEARIZABLE
	ctx, cancel := context.WithTimeout(ctx, leadReadTimeout)
	defer cancel()
	if err := r.awaitServe(ctx); err != nil {
		return got, err
	}
	if linearizable {
		index, err := r.confirm(ctx)
		if err != nil {
			return got, err
		}
		minIndex = max(minIndex, index)
	}
	if r.machine.AppliedIndex() < minIndex {
		// Every acknowledged push is in the log of the leader, so none is beyond its end: do not
		// wait for one.
		if last := r.group.LastIndex(); minIndex > last {
			return got, &rowraft.TooStaleError{Shard: r.shard, Applied: r.machine.AppliedIndex(), Wanted: minIndex}
		}
		if err := r.awaitApplied(ctx, minIndex); err != nil {
			return got, err
		}
	}
	return r.pullRows(req, t)
}

// awaitApplied waits until entry index is applied. Errors: CodeTooStale; CodeOverloaded.
func (r *replica) awaitApplied(ctx context.Context, index rowraft.Index) error {
	err := r.group.WaitApplied(ctx, index)
	if err == nil || rowraft.CodeOf(err) == rowraft.CodeOverloaded {
		return err
	}
	return &rowraft.TooStaleError{Shard: r.shard, Applied: r.machine.AppliedIndex(), Wanted: index}
}

// pullRows reads the rows of a pull that t admitted.
func (r *replica) pullRows(req *rowraftv1.PullRequest, t *admit.Ticket) (got pulled, err error) {
	var overLimit error
	var reply []byte
	known := rowraft.TableEpoch(req.KnownEpoch)
	got.payload, got.at, err = r.machine.Pull(req.Payload, req.Presence, known, func(size int) []byte {
		if overLimit = t.Grow(len(req.Payload) + size); overLimit != nil {
			return nil
		}
		reply = rpc.Pool.Bytes(size)
		return reply
	})
	if err != nil {
		rpc.Pool.Release(reply)
		if overLimit != nil {
			err = overLimit
		}
		return pulled{}, err
	}
	return got, nil
}

// knowsNoOtherLeader implements the sabotage canary.StaleReads: it proves no leadership.
func knowsNoOtherLeader(g *raftstore.Group) bool {
	node, _, me := g.Leader()
	return me || node == ""
}

// pullBounded answers a read on any replica, if the replica can prove that its rows meet b when they are
// read.
func (r *replica) pullBounded(ctx context.Context, req *rowraftv1.PullRequest, t *admit.Ticket) (pulled, error) {
	b := boundOf(req)
	if b.MaxAge == 0 {
		return pulled{}, rowraft.Errorf(rowraft.CodeInvalidArgument, "a bounded read without max_age_ns: want 1 ns or more")
	}
	minIndex := rowraft.Index(req.MinIndex)
	if last := r.group.LastIndex(); minIndex > last && minIndex-last > maxAhead {
		return pulled{}, r.tooStale(freshness.Lease{}, b, minIndex)
	}
	deadline := time.Now().Add(boundedPatience)
	for {
		if err := r.maySpeak(); err != nil {
			return pulled{}, err
		}
		p, ok := awaitFresh(ctx, r, b, minIndex, deadline)
		if !ok {
			r.reads.refused.Add(1)
			return pulled{}, r.tooStale(p, b, minIndex)
		}
		got, err := r.pullRows(req, t)
		if err != nil {
			return pulled{}, err
		}
		// The process may have been suspended since the proof.
		if got.age, got.lag = p.Age(), p.Lag; got.age <= b.MaxAge {
			r.reads.served.Add(1)
			return got, nil
		}
		rpc.Pool.Release(got.payload)
		if ctx.Err() != nil || time.Now().After(deadline) {
			r.reads.refused.Add(1)
			return pulled{}, r.tooStale(p, b, minIndex)
		}
	}
}

// awaitFresh returns a proof that meets b, when entry minIndex is applied. If ctx ends or the deadline comes first, it
// returns the best proof it has, and false.
func awaitFresh(ctx context.Context, r *replica, b freshness.Bound, minIndex rowraft.Index,
	deadline time.Time) (p freshness.Lease, ok bool) {
	if p, ok = r.fresh.Now(b); ok && r.machine.AppliedIndex() >= minIndex {
		return p, true // no timer
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	if p, ok = r.fresh.Await(ctx, b); ok && r.machine.AppliedIndex() < minIndex {
		ok = r.group.WaitApplied(ctx, minIndex) == nil
	}
	return p, ok
}

func (r *replica) tooStale(p freshness.Lease, b freshness.Bound, minIndex rowraft.Index) error {
	return &rowraft.TooStaleError{
		Shard: r.shard, Applied: r.machine.AppliedIndex(), Wanted: minIndex, Age: p.Age(), MaxAge: b.MaxAge, Lag: p.Lag,
		MaxLag: b.MaxLag,
	}
}

// leaderPoll is how often a probe without an answer checks whether another node leads.
const leaderPoll = 50 * time.Millisecond

// probe asks the leader of the shard of r for an index that covers all acknowledged pushes.
func (h *Host) probe(ctx context.Context, r *replica) (rowraft.Index, error) {
	leader, _, me := r.group.Leader()
	switch {
	case me:
		index, err := r.group.ReadIndex(ctx)
		return index, ShardError(r.shard, err)
	case leader == "":
		return 0, rowraft.Errorf(rowraft.CodeNoLeader, "shard %d has no leader", r.shard)
	}
	conn, err := h.conn(leader)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A leader that is suspended does not answer, and the shard soon has another one.
	watch := time.AfterFunc(leaderPoll, func() { cancelWhenLedBy(ctx, r.group, cancel, leader) })
	defer watch.Stop()
	reply, err := rowraftv1.NewReplicasClient(conn).ReadIndex(ctx, &rowraftv1.ReadIndexRequest{Shard: uint32(r.shard),
		Cluster: string(h.opts.Cluster())})
	return rowraft.Index(reply.GetIndex()), err
}

// cancelWhenLedBy cancels ctx when a node other than notBy is known to lead. It returns when ctx ends.
func cancelWhenLedBy(ctx context.Context, g *raftstore.Group, cancel context.CancelFunc, notBy rowraft.NodeID) {
	t := time.NewTicker(leaderPoll)
	defer t.Stop()
	for ctx.Err() == nil {
		if leader, _, _ := g.Leader(); leader != notBy && leader != "" {
			cancel()
			return
		}
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
}

// ReadIndex proves that this server leads a shard.
func (s *replicaService) ReadIndex(ctx context.Context,
	req *rowraftv1.ReadIndexRequest) (*rowraftv1.ReadIndexReply, error) {
	if have := s.h.opts.Cluster(); req.Cluster != string(have) {
		return nil, rowraft.Errorf(rowraft.CodeIdentity, "this server is of cluster %s, the call is for cluster %q", have,
			req.Cluster)
	}
	r, err := s.h.replicaFor(req.Shard, anyMapVersion, 0)
	if err != nil {
		return nil, err
	}
	if err := r.maySpeak(); err != nil {
		return nil, err
	}
	index, err := r.group.ReadIndex(ctx)
	if err != nil {
		return nil, ShardError(r.shard, err)
	}
	return &rowraftv1.ReadIndexReply{Index: uint64(index)}, nil
}
