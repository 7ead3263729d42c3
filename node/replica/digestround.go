package replica

import (
	"context"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
	"google.golang.org/grpc"
)

const (
	// roundEveryBytes is the amount of log after which a comparison is due before its time.
	roundEveryBytes = 64 << 20
	// votePatience is how long a leader waits for the digests of the other replicas.
	votePatience = 2 * time.Second
)

// verdict is the result of a digest round.
type verdict = rowraftv1.DigestVerdict

const (
	agreed     = rowraftv1.DigestVerdict_DIGEST_VERDICT_AGREED
	noMajority = rowraftv1.DigestVerdict_DIGEST_VERDICT_DIVIDED
	undecided  = rowraftv1.DigestVerdict_DIGEST_VERDICT_UNDECIDED
)

// digestVote is what one member reports about a mark.
type digestVote struct {
	raftstore.Member
	voter, leads bool
	noted        bool // the member has a digest of its own at the mark: digest
	digest       shard.Digest
	fenced       string // why the member is fenced; then its vote does not count
	err          error  // why the member did not vote
}

// tally returns the digest that more than half of the voters have, and at least two. If there is none, the
// shard has no majority if no further vote can change that: every voter that is not fenced has a digest, and
// the digests differ.
func tally(all []digestVote) (verdict, shard.Digest) {
	voters, able, noted, best := 0, 0, 0, 0
	var digest shard.Digest
	for i := range all {
		t := &all[i]
		if !t.voter {
			continue
		}
		voters++
		if t.fenced != "" {
			continue
		}
		able++
		if !t.noted {
			continue
		}
		noted++
		same := 0
		for _, o := range all {
			if o.voter && o.fenced == "" && o.noted && o.digest == t.digest {
				same++
			}
		}
		if same > best {
			best, digest = same, t.digest
		}
	}
	switch {
	case best >= max(voters/2+1, 2):
		return agreed, digest
	case noted == able && best < noted:
		return noMajority, shard.Digest{}
	}
	return undecided, shard.Digest{}
}

// differ reports whether two members have different digests.
func differ(all []digestVote) bool {
	for _, a := range all {
		for _, b := range all {
			if a.noted && b.noted && a.digest != b.digest {
				return true
			}
		}
	}
	return false
}

// digestRounds compares the digests of the replicas of one shard, while this replica leads it.
//
// The goroutine of Host.watch owns all fields below round.
type digestRounds struct {
	r     *replica
	every time.Duration // between two rounds while rows change
	conn  func(rowraft.NodeID) (*grpc.ClientConn, error)

	// round holds a token during one round. It is a channel, not a mutex, because its holder waits for
	// other servers: each waiter must be able to leave when its context ends.
	round chan struct{}

	at      time.Time // of the last round, and the term and the written bytes then
	term    uint64
	written uint64
	open    bool // no digest was agreed on
}

// noticeFence wakes Host.watch if the replica must be fenced.
func (r *replica) noticeFence() {
	if r.whyFenced() != nil {
		r.fence.Do(func() { close(r.fenced) })
	}
}

// whyFenced returns why the replica must be fenced; nil if it need not be.
func (r *replica) whyFenced() error {
	if e := r.machine.Fenced(); e != nil {
		return e
	}
	if why := r.rolledBack.Load(); why != nil {
		return *why
	}
	return nil
}

// runIfDue runs a round if this replica leads and a round is due.
func (d *digestRounds) runIfDue() {
	r := d.r
	if r.mustLead() != nil {
		return
	}
	term, written := r.leading.Load(), r.written.Load()
	late := time.Since(d.at) >= d.every && (written != d.written || d.open)
	if d.term == term && !late && written-d.written < roundEveryBytes {
		return
	}
	d.at, d.term, d.written = time.Now(), term, written
	ctx, cancel := context.WithTimeout(r.ctx, 4*votePatience)
	defer cancel()
	out, err := d.run(ctx, false)
	d.open = err != nil || out.verdict != agreed
	switch {
	case err != nil:
		r.log.Debug("the replicas were not compared", "err", err)
	case out.verdict == noMajority:
		r.log.Error("replica hash mismatch (critical): no majority has the same rows, so no replica serves them", "metric",
			"rowraft_shard_divided", "mark", uint64(out.mark))
	case differ(out.votes):
		r.log.Error("replica hash mismatch (critical)", "metric", "rowraft_replica_differs", "mark", uint64(out.mark),
			"verdict", out.verdict.String())
	}
}

// digestRound is the outcome of one round.
type digestRound struct {
	mark    rowraft.Index
	votes   []digestVote
	verdict verdict
	digest  shard.Digest // of the majority
}

// run logs a mark, collects the members' digests there, and logs the verdict. With everyone it waits for
// all votes; without, until a majority agrees.
func (d *digestRounds) run(ctx context.Context, everyone bool) (*digestRound, error) {
	r := d.r
	select {
	case d.round <- struct{}{}:
		defer func() { <-d.round }()
	case <-ctx.Done():
		return nil, rowraft.Errorf(rowraft.CodeDeadline, "shard %d: another comparison of its replicas is still running: %w",
			r.shard, context.Cause(ctx))
	}
	if err := r.mustLead(); err != nil {
		return nil, err
	}
	members, err := r.group.Members()
	if err != nil {
		return nil, ShardError(r.shard, err)
	}
	if voters := members.Voters(); voters < 2 {
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "shard %d has %d voting replica, and nothing to compare it with",
			r.shard, voters)
	}
	out := &digestRound{}
	if out.mark, err = r.propose(ctx, wire.ProofEntry(r.header(), &wire.Proof{Step: wire.ProofMark})); err != nil {
		return nil, err
	}
	out.votes = d.collect(ctx, &members, out.mark, everyone)
	out.verdict, out.digest = tally(out.votes)
	p := wire.Proof{Mark: out.mark, Rows: out.digest.Rows, Digest: out.digest.Sum}
	switch {
	case out.verdict == agreed:
		p.Step = wire.ProofAgreed
	case out.verdict == noMajority && r.machine.Rounds.NoMajority() == 0:
		p.Step = wire.ProofDivided
	default:
		return out, nil
	}
	if _, err = r.propose(ctx, wire.ProofEntry(r.header(), &p)); r.machine.Fenced() != nil {
		err = nil // the logged verdict fences this leader: that is the result
	}
	return out, err
}

// checkMark returns an error if this leader's rows at a mark must not be kept: the majority has other rows
// there, or replicas differ and no majority agrees. A missing vote has no effect.
func (d *digestRounds) checkMark(ctx context.Context, mark rowraft.Index) error {
	r := d.r
	members, err := r.group.Members()
	if err != nil {
		return ShardError(r.shard, err)
	}
	votes := d.collect(ctx, &members, mark, false)
	own, noted := r.machine.Rounds.At(mark)
	switch v, digest := tally(votes); {
	case v == agreed && (!noted || digest == own), v == undecided && !differ(votes):
		return nil
	case v == agreed:
		return rowraft.Errorf(rowraft.CodeCorrupt, "shard %d: at index %d this leader has other rows than the majority",
			r.shard, mark)
	}
	return rowraft.Errorf(rowraft.CodeCorrupt,
		"shard %d: at index %d its replicas have different rows, and it is not known which are right", r.shard, mark)
}

// collect asks every member for its digest at mark. It waits until all have voted or, without everyone,
// until a majority agrees.
func (d *digestRounds) collect(ctx context.Context, members *raftstore.Membership, mark rowraft.Index,
	everyone bool) []digestVote {
	ctx, cancel := context.WithTimeout(ctx, votePatience)
	defer cancel()
	out := make([]digestVote, len(members.Members))
	type numbered struct {
		i    int
		vote digestVote
	}
	votes := make(chan numbered, len(out))
	for i, m := range members.Members {
		out[i] = digestVote{Member: m.Member, voter: m.Voter,
			err: rowraft.Errorf(rowraft.CodeDeadline, "server %s has not answered", m.Node)}
		go func() {
			v := d.ask(ctx, m.Member, mark)
			v.Member, v.voter = m.Member, m.Voter
			votes <- numbered{i, v}
		}()
	}
	for range out { // each vote comes when ctx ends at the latest
		v := <-votes
		out[v.i] = v.vote
		if now, _ := tally(out); now == agreed && !everyone {
			cancel()
		}
	}
	return out
}

// ask asks one member.
func (d *digestRounds) ask(ctx context.Context, m raftstore.Member, mark rowraft.Index) (v digestVote) {
	if m.Replica == d.r.id {
		v.leads = true
		v.digest, v.noted = d.r.machine.Rounds.At(mark)
		return v
	}
	conn, err := d.conn(m.Node)
	if err != nil {
		v.err = err
		return v
	}
	reply, err := rowraftv1.NewReplicasClient(conn).NotedDigest(ctx,
		&rowraftv1.NotedDigestRequest{Shard: uint32(d.r.shard), MarkIndex: uint64(mark)})
	switch {
	case err != nil:
		v.err = err
	case reply.ReplicaId != string(m.Replica):
		v.err = rowraft.Errorf(rowraft.CodeIdentity, "server %s has replica %s, the member is %s", m.Node, reply.ReplicaId,
			m.Replica)
	case reply.Noted && len(reply.Digest) != len(v.digest.Sum):
		v.err = rowraft.Errorf(rowraft.CodeCorrupt, "server %s sent a digest of %d bytes", m.Node, len(reply.Digest))
	case reply.Noted:
		v.noted, v.digest = true, shard.Digest{Index: mark, Rows: reply.Rows, Sum: [16]byte(reply.Digest)}
	}
	v.fenced = reply.GetFenced()
	return v
}

// NotedDigest returns the digest of the replica here at a mark.
func (s *replicaService) NotedDigest(ctx context.Context,
	req *rowraftv1.NotedDigestRequest) (*rowraftv1.NotedDigestReply, error) {
	if f, ok := s.h.fences.get(rowraft.ShardID(req.Shard)); ok {
		return &rowraftv1.NotedDigestReply{ReplicaId: string(f.id), Fenced: f.why}, nil
	}
	r, err := s.h.replicaFor(req.Shard, anyMapVersion, 0)
	if err != nil {
		return nil, err
	}
	mark := rowraft.Index(req.MarkIndex)
	if err := r.group.WaitApplied(ctx, mark); err != nil {
		return nil, &rowraft.TooStaleError{Shard: r.shard, Applied: r.machine.AppliedIndex(), Wanted: mark}
	}
	reply := &rowraftv1.NotedDigestReply{ReplicaId: string(r.id)}
	if e := r.whyFenced(); e != nil {
		reply.Fenced = e.Error()
	}
	if d, ok := r.machine.Rounds.At(mark); ok {
		reply.Noted, reply.Rows, reply.Digest = true, d.Rows, d.Sum[:]
	}
	return reply, nil
}

// Prove compares the replicas of a shard now.
func (s *replicaService) Prove(ctx context.Context, req *rowraftv1.ProveRequest) (*rowraftv1.ProveReply, error) {
	r, err := s.leaderOf(req.Shard)
	if err != nil {
		return nil, err
	}
	round, err := r.rounds.run(ctx, true)
	if err != nil {
		return nil, err
	}
	out := &rowraftv1.ProveReply{MarkIndex: uint64(round.mark), Verdict: round.verdict}
	if round.verdict == agreed {
		out.Rows, out.Digest = round.digest.Rows, round.digest.Sum[:]
	}
	for _, v := range round.votes {
		p := &rowraftv1.ProvedReplica{
			ReplicaId: string(v.Replica), Node: string(v.Node), Voter: v.voter, Leader: v.leads, Noted: v.noted,
			Fenced: v.fenced,
		}
		if v.noted {
			p.Rows, p.Digest = v.digest.Rows, v.digest.Sum[:]
		}
		if v.err != nil {
			p.Error = v.err.Error()
		}
		out.Replicas = append(out.Replicas, p)
	}
	return out, nil
}
