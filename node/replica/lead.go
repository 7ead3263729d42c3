package replica

import (
	"context"
	"log/slog"
	"time"

	"github.com/rowraft/rowraft"
)

// This file decides whether a replica may answer a call. From the weakest condition to the strongest:
//
//   - maySpeak: the replica is not fenced, and a majority of the replicas has the same rows. Any replica.
//   - mustLead: the replica leads and has applied what was committed before its term.
//   - mustServe: mustLead, and a majority of the replicas has the same rows. Pushes and reads of the leader.
//   - awaitServe (handover.go): mustServe, after a short wait while the leader changes.
//   - confirm: the replica has asked a majority whether it still leads. Linearizable reads, and refusals that are
//     final for the client.

// maySpeak reports why this replica may not answer for its shard, leader or not.
func (r *replica) maySpeak() error {
	select {
	case <-r.fenced:
		return r.whyFenced()
	default:
		return r.checkAgreed()
	}
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
	if at := r.machine.Rounds.NoMajority(); at != 0 {
		return rowraft.Errorf(rowraft.CodeCorrupt, "shard %d: at index %d no majority of its replicas had the same rows, "+
			"so no replica serves it: see `rowraft shard digest %d`, then restore a checkpoint, or move away the replicas "+
			"that you do not trust", r.shard, at, r.shard)
	}
	return nil
}

// mustLead reports why this replica cannot serve as the leader.
func (r *replica) mustLead() error {
	select {
	case <-r.fenced:
		return r.whyFenced()
	default:
	}
	node, term, me := r.group.Leader()
	switch {
	case me && r.leading.Load() == uint64(term):
		return nil
	case me:
		return rowraft.Errorf(rowraft.CodeStarting,
			"shard %d: the new leader still applies what was committed before term %d", r.shard, term)
	case node == "" || node == r.node: // it has just stepped down
		return rowraft.Errorf(rowraft.CodeNoLeader, "shard %d has no leader (term %d)", r.shard, term)
	}
	return &rowraft.NotLeaderError{Shard: r.shard, Term: term, Leader: node}
}

// confirm proves that this replica leads. When it returns, all entries that were committed before the call are applied.
// It returns the index that a linearizable read must wait for. Refusals that are final for the client come after it
// (checkPart).
func (r *replica) confirm(ctx context.Context) (rowraft.Index, error) {
	index, err := readIndex(ctx, r.group, r.shard)
	if err != nil {
		return 0, err
	}
	if index > r.machine.AppliedIndex() {
		index = 0 // it is of an entry of raft's own; readIndex has waited for all of ours before it
	}
	return index, r.mustLead()
}

// leadTry limits one try of a new leader to prove that it leads. Between tries it checks whether it still
// leads. The state that it must apply first may take longer than one try.
const leadTry = 5 * time.Second

// leadGroup is the part of a Raft group that confirmLead needs.
type leadGroup interface {
	Leader() (node rowraft.NodeID, term rowraft.Term, isMe bool)
	ReadIndex(ctx context.Context) (rowraft.Index, error)
	WaitApplied(ctx context.Context, index rowraft.Index) error
}

// confirmLead returns the term that this replica leads, after everything committed before the term is
// applied. It tries until the replica no longer leads, or ctx ends, and then returns false. It does not
// give up earlier, because as long as this replica leads in Raft, no other one can serve.
func confirmLead(ctx context.Context, g leadGroup, shard rowraft.ShardID,
	log *slog.Logger) (term rowraft.Term, ok bool) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		_, term, me := g.Leader()
		if !me {
			return term, false
		}
		try, cancel := context.WithTimeout(ctx, leadTry)
		_, err := readIndex(try, g, shard)
		cancel()
		if err == nil {
			// The index may belong to a later term: check the term again.
			if _, now, me := g.Leader(); me && now == term {
				return term, true
			}
			continue
		}
		log.Info("leads, and cannot serve yet", "term", uint64(term), "err", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return term, false
		}
	}
}

// readIndex proves that this replica leads. It returns an index that covers everything committed before the
// call, once that index is applied.
func readIndex(ctx context.Context, g leadGroup, shard rowraft.ShardID) (rowraft.Index, error) {
	index, err := g.ReadIndex(ctx)
	if err != nil {
		return 0, ShardError(shard, err)
	}
	return index, g.WaitApplied(ctx, index)
}
