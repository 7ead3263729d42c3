package replica

import (
	"context"
	"log/slog"
	"time"

	"github.com/rowraft/rowraft"
)

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
