package sim

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/e2e/check"
	"github.com/rowraft/rowraft/e2e/cluster"
)

// Watch knows every leader there was, from the servers' logs. Safe for concurrent
// use.
type Watch struct {
	mu      sync.Mutex
	all     []check.Leading
	newest  map[rowraft.ShardID]cluster.Leader
	changed chan struct{} // closed at the next change
}

func newWatch() *Watch {
	return &Watch{newest: make(map[rowraft.ShardID]cluster.Leader), changed: make(chan struct{})}
}

func (w *Watch) saw(shard rowraft.ShardID, term rowraft.Term, server, replica string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, check.Leading{Shard: int(shard), Term: uint64(term), Replica: replica})
	if w.newest[shard].Term <= term {
		w.newest[shard] = cluster.Leader{Server: server, Term: term}
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// All returns every leadership so far.
func (w *Watch) All() []check.Leading {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.all)
}

// Leader returns who leads shard, as far as known.
func (w *Watch) Leader(shard rowraft.ShardID) (cluster.Leader, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l, ok := w.newest[shard]
	return l, ok
}

// AwaitChange waits until a shard's leader is of a term above and returns it.
func (w *Watch) AwaitChange(ctx context.Context, shard rowraft.ShardID, above rowraft.Term) (cluster.Leader, error) {
	for {
		w.mu.Lock()
		l, ok := w.newest[shard]
		changed := w.changed
		w.mu.Unlock()
		if ok && l.Term > above {
			return l, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return l, fmt.Errorf("shard %d has no leader of a term above %d: %w", shard, above, context.Cause(ctx))
		}
	}
}
