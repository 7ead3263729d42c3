package node

import (
	"context"
	"log/slog"
	"time"

	"github.com/rowraft/rowraft"
)

// leadTry bounds one look of a new leader at its group: in between it asks whether
// it still leads. The state that it must apply first may take longer.
const leadTry = 5 * time.Second

// leadGroup is what confirmLead needs of a Raft group.
type leadGroup interface {
	Leader() (node rowraft.NodeID, term rowraft.Term, isMe bool)
	ReadIndex(ctx context.Context) (rowraft.Index, error)
	WaitApplied(ctx context.Context, index rowraft.Index) error
}

// confirmLead returns the term that this replica leads, once everything committed
// before it is applied. It tries until the replica does not lead or ctx ends, and
// then returns false: as long as raft leads, nobody else can serve.
func confirmLead(ctx context.Context, g leadGroup, shard rowraft.ShardID, log *slog.Logger) (term rowraft.Term, ok bool) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		_, term, me := g.Leader()
		if !me {
			return term, false
		}
		try, cancel := context.WithTimeout(ctx, leadTry)
		_, err := readIndex(try, g, shard)
		cancel()
		if err == nil {
			// What was read may have been of a later term.
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

// readIndex proves that this replica leads and returns an index that covers all
// that was committed before, once it is applied.
func readIndex(ctx context.Context, g leadGroup, shard rowraft.ShardID) (rowraft.Index, error) {
	index, err := g.ReadIndex(ctx)
	if err != nil {
		return 0, translate(shard, err)
	}
	return index, g.WaitApplied(ctx, index)
}
