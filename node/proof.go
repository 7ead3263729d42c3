package node

import (
	"context"
	"fmt"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

const (
	// proofEveryBytes is the amount of log after which a comparison is due before its time.
	proofEveryBytes = 64 << 20
	// proofPatience is how long a leader waits for the digests of the other replicas.
	proofPatience = 2 * time.Second
)

// verdict is the result of a comparison of a shard's replicas.
type verdict = rowraftv1.ProofVerdict

const (
	agreed    = rowraftv1.ProofVerdict_PROOF_VERDICT_AGREED
	divided   = rowraftv1.ProofVerdict_PROOF_VERDICT_DIVIDED
	undecided = rowraftv1.ProofVerdict_PROOF_VERDICT_UNDECIDED
)

// testimony is the answer of one member about a mark.
type testimony struct {
	raftstore.Member
	voter, leads bool
	noted        bool // the member has a digest of its own at the mark: figures
	figures      shard.Digest
	fenced       string // why the member is fenced; then its answer does not count
	err          error  // why there is no answer
}

// judge returns the digest that more than half of the voters have, and at least two. If there is none, the
// shard is divided if no further answer can change that: every voter that is not fenced has a digest, and
// the digests differ.
func judge(all []testimony) (verdict, shard.Digest) {
	voters, able, noted, best := 0, 0, 0, 0
	var figures shard.Digest
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
			if o.voter && o.fenced == "" && o.noted && o.figures == t.figures {
				same++
			}
		}
		if same > best {
			best, figures = same, t.figures
		}
	}
	switch {
	case best >= max(voters/2+1, 2):
		return agreed, figures
	case noted == able && best < noted:
		return divided, shard.Digest{}
	}
	return undecided, shard.Digest{}
}

// differ reports whether two members have different digests.
func differ(all []testimony) bool {
	for _, a := range all {
		for _, b := range all {
			if a.noted && b.noted && a.figures != b.figures {
				return true
			}
		}
	}
	return false
}

// prover is the state of the last comparison of a shard by its leader. The goroutine of Node.watch owns all
// fields except round.
type prover struct {
	// round holds a token during one comparison. It is a channel, not a mutex, because its holder waits for
	// other servers: each waiter must be able to leave when its context ends.
	round chan struct{}

	at      time.Time
	term    uint64
	written uint64
	open    bool // no digest was agreed on
}

// applied counts the applied bytes, and notices when the machine was fenced.
func (r *replica) applied(entry []byte, a *shard.Applied) {
	r.steps.EntryApplied()
	h, _, err := wire.ParseEntryHeader(entry)
	have := r.machine.Epoch()
	if err == nil && h.Kind == wire.EntryRestoreClose && rowraft.CodeOf(a.Parts[0].Err) == rowraft.CodeCorrupt {
		r.notClosed = have
	}
	if err == nil && h.Epoch > have && r.notClosed == have {
		// The other replicas have closed a restore that this replica could not close: its staged rows
		// differ from those of the log, so the rows that it serves do too. Without such a failed close, the
		// entry's epoch is that of a caller, which may be ahead of its shard.
		_ = r.machine.Fence(fmt.Sprintf("it is of table epoch %d where the log is of %d: what it had staged of a restore was damaged", have, h.Epoch))
		r.noticeFence()
		return
	}
	if err == nil && h.Kind != wire.EntryProof {
		r.written.Add(uint64(len(entry)))
		return
	}
	if proved := uint64(r.machine.AgreedAt()); r.lastProved.Swap(proved) != proved {
		r.provedAt.Store(time.Now().UnixNano())
	}
	r.noticeFence()
}

// noticeFence wakes Node.watch if the replica must be fenced.
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

// mustServe reports why this replica may not answer for the rows of its shard.
func (r *replica) mustServe() error {
	if err := r.checkAgreed(); err != nil {
		return err
	}
	return r.mustLead()
}

// checkAgreed refuses calls for the rows of the shard if no majority of its replicas agreed on them.
func (r *replica) checkAgreed() error {
	if at := r.machine.NoMajority(); at != 0 {
		return rowraft.Errorf(rowraft.CodeCorrupt, "shard %d: at index %d no majority of its replicas had the same rows, so nobody serves it: see `rowraft shard digest %d`, then restore a checkpoint, or move away the replicas that you do not trust", r.shard, at, r.shard)
	}
	return nil
}

// maybeProve compares the replicas of a shard that this one leads, if a comparison is due.
func (n *Node) maybeProve(r *replica) {
	if r.mustLead() != nil {
		return
	}
	p, term, written := &r.proof, r.leading.Load(), r.written.Load()
	late := time.Since(p.at) >= n.cfg.ProofEvery && (written != p.written || p.open)
	if p.term == term && !late && written-p.written < proofEveryBytes {
		return
	}
	p.at, p.term, p.written = time.Now(), term, written
	ctx, cancel := context.WithTimeout(r.ctx, 4*proofPatience)
	defer cancel()
	round, err := n.prove(ctx, r, false)
	p.open = err != nil || round.verdict != agreed
	switch {
	case err != nil:
		r.log.Debug("the replicas were not compared", "err", err)
	case round.verdict == divided:
		r.log.Error("replica hash mismatch (critical): no majority has the same rows, nobody serves them", "metric", "rowraft_shard_divided", "mark", uint64(round.mark))
	case differ(round.testimonies):
		r.log.Error("replica hash mismatch (critical)", "metric", "rowraft_replica_differs", "mark", uint64(round.mark), "verdict", round.verdict.String())
	}
}

// proofRound is one comparison.
type proofRound struct {
	mark        rowraft.Index
	testimonies []testimony
	verdict     verdict
	figures     shard.Digest // of the majority
}

// prove logs a mark, asks every member for its digest there, and logs the verdict. With everyone it waits
// for all answers; without, until a majority agrees.
func (n *Node) prove(ctx context.Context, r *replica, everyone bool) (*proofRound, error) {
	select {
	case r.proof.round <- struct{}{}:
		defer func() { <-r.proof.round }()
	case <-ctx.Done():
		return nil, rowraft.Errorf(rowraft.CodeDeadline, "shard %d: another comparison of its replicas is still running: %w", r.shard, context.Cause(ctx))
	}
	if err := r.mustLead(); err != nil {
		return nil, err
	}
	members, err := r.group.Members()
	if err != nil {
		return nil, translate(r.shard, err)
	}
	if voters := members.Voters(); voters < 2 {
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "shard %d has %d voting replica, and nothing to compare it with", r.shard, voters)
	}
	round := &proofRound{}
	if round.mark, err = r.propose(ctx, wire.ProofEntry(r.header(), &wire.Proof{Step: wire.ProofMark})); err != nil {
		return nil, err
	}
	round.testimonies = n.hear(ctx, r, &members, round.mark, everyone)
	round.verdict, round.figures = judge(round.testimonies)
	p := wire.Proof{Mark: round.mark, Rows: round.figures.Rows, Digest: round.figures.Sum}
	switch {
	case round.verdict == agreed:
		p.Step = wire.ProofAgreed
	case round.verdict == divided && r.machine.NoMajority() == 0:
		p.Step = wire.ProofDivided
	default:
		return round, nil
	}
	if _, err = r.propose(ctx, wire.ProofEntry(r.header(), &p)); r.machine.Fenced() != nil {
		err = nil // the logged verdict fences this leader: that is the result
	}
	return round, err
}

// vouch returns an error if the rows of the leader r at a mark must not be kept: the majority has other
// rows there, or replicas differ and no majority agrees. A replica without an answer counts neither for nor
// against r.
func (n *Node) vouch(ctx context.Context, r *replica, mark rowraft.Index) error {
	members, err := r.group.Members()
	if err != nil {
		return translate(r.shard, err)
	}
	all := n.hear(ctx, r, &members, mark, false)
	own, noted := r.machine.Noted(mark)
	switch v, figures := judge(all); {
	case v == agreed && (!noted || figures == own), v == undecided && !differ(all):
		return nil
	case v == agreed:
		return rowraft.Errorf(rowraft.CodeCorrupt, "shard %d: at index %d this leader has other rows than the majority", r.shard, mark)
	}
	return rowraft.Errorf(rowraft.CodeCorrupt, "shard %d: at index %d its replicas have different rows, and it is not known which are right", r.shard, mark)
}

// hear asks every member for its digest at mark. It waits until all have answered or, without everyone,
// until a majority agrees.
func (n *Node) hear(ctx context.Context, r *replica, members *raftstore.Membership, mark rowraft.Index, everyone bool) []testimony {
	ctx, cancel := context.WithTimeout(ctx, proofPatience)
	defer cancel()
	out := make([]testimony, len(members.Members))
	type heard struct {
		i int
		t testimony
	}
	answers := make(chan heard, len(out))
	for i, m := range members.Members {
		out[i] = testimony{Member: m.Member, voter: m.Voter, err: rowraft.Errorf(rowraft.CodeDeadline, "node %s has not answered", m.Node)}
		go func() {
			t := n.ask(ctx, r, m.Member, mark)
			t.Member, t.voter = m.Member, m.Voter
			answers <- heard{i, t}
		}()
	}
	for range out { // each answer comes when ctx ends at the latest
		a := <-answers
		out[a.i] = a.t
		if v, _ := judge(out); v == agreed && !everyone {
			cancel()
		}
	}
	return out
}

// ask asks one member.
func (n *Node) ask(ctx context.Context, r *replica, m raftstore.Member, mark rowraft.Index) (t testimony) {
	if m.Replica == r.id {
		t.leads = true
		t.figures, t.noted = r.machine.Noted(mark)
		return t
	}
	reply, err := n.askNode(ctx, m.Node, &rowraftv1.NotedDigestRequest{Shard: uint32(r.shard), MarkIndex: uint64(mark)})
	switch {
	case err != nil:
		t.err = err
	case reply.ReplicaId != string(m.Replica):
		t.err = rowraft.Errorf(rowraft.CodeIdentity, "node %s has replica %s, the member is %s", m.Node, reply.ReplicaId, m.Replica)
	case reply.Noted && len(reply.Digest) != len(t.figures.Sum):
		t.err = rowraft.Errorf(rowraft.CodeCorrupt, "node %s sent a digest of %d bytes", m.Node, len(reply.Digest))
	case reply.Noted:
		t.noted, t.figures = true, shard.Digest{Index: mark, Rows: reply.Rows, Sum: [16]byte(reply.Digest)}
	}
	t.fenced = reply.GetFenced()
	return t
}

func (n *Node) askNode(ctx context.Context, id rowraft.NodeID, req *rowraftv1.NotedDigestRequest) (*rowraftv1.NotedDigestReply, error) {
	node, ok := n.sched.View().Map().Node(id)
	if !ok {
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "node %s is not in the cluster map", id)
	}
	conn, err := n.control.conns.Get(node.Addr)
	if err != nil {
		return nil, err
	}
	return rowraftv1.NewReplicasClient(conn).NotedDigest(ctx, req)
}

// NotedDigest returns the digest of the replica here at a mark.
func (s *replicaService) NotedDigest(ctx context.Context, req *rowraftv1.NotedDigestRequest) (*rowraftv1.NotedDigestReply, error) {
	if f, ok := s.n.fencedReplica(rowraft.ShardID(req.Shard)); ok {
		return &rowraftv1.NotedDigestReply{ReplicaId: string(f.id), Fenced: f.why}, nil
	}
	r, err := s.n.replicaFor(req.Shard, anyMapVersion, 0)
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
	if d, ok := r.machine.Noted(mark); ok {
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
	round, err := s.n.prove(ctx, r, true)
	if err != nil {
		return nil, err
	}
	out := &rowraftv1.ProveReply{MarkIndex: uint64(round.mark), Verdict: round.verdict}
	if round.verdict == agreed {
		out.Rows, out.Digest = round.figures.Rows, round.figures.Sum[:]
	}
	for _, t := range round.testimonies {
		p := &rowraftv1.ProvedReplica{
			ReplicaId: string(t.Replica), Node: string(t.Node), Voter: t.voter, Leader: t.leads, Noted: t.noted, Fenced: t.fenced,
		}
		if t.noted {
			p.Rows, p.Digest = t.figures.Rows, t.figures.Sum[:]
		}
		if t.err != nil {
			p.Error = t.err.Error()
		}
		out.Replicas = append(out.Replicas, p)
	}
	return out, nil
}
