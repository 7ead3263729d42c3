package sim

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/e2e/check"
	"github.com/rowraft/rowraft/e2e/cluster"
)

// Watch knows every leader there was, from the servers' logs, and samples the digests
// of all replicas. Safe for concurrent use.
type Watch struct {
	stop context.CancelFunc // of Sample; nil: it does not run
	wg   sync.WaitGroup

	mu      sync.Mutex
	began   time.Time
	seen    cluster.Sights
	newest  map[rowraft.ShardID]cluster.Leader
	changed chan struct{} // closed at the next change
}

func newWatch() *Watch {
	return &Watch{began: time.Now(), newest: make(map[rowraft.ShardID]cluster.Leader), changed: make(chan struct{})}
}

func (w *Watch) saw(shard rowraft.ShardID, term rowraft.Term, server, replica string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen.Leads = append(w.seen.Leads, check.Leading{Shard: int(shard), Term: uint64(term), Replica: replica,
		At: int64(time.Since(w.began))})
	if w.newest[shard].Term <= term {
		w.newest[shard] = cluster.Leader{Server: server, Term: term}
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// Seen returns all that was seen so far.
func (w *Watch) Seen() cluster.Sights {
	w.mu.Lock()
	defer w.mu.Unlock()
	return cluster.Sights{Leads: slices.Clone(w.seen.Leads), Digests: slices.Clone(w.seen.Digests)}
}

const (
	sampleEvery    = 250 * time.Millisecond
	samplePatience = 200 * time.Millisecond
)

// Sample begins to ask for digests; Close ends it.
func (w *Watch) Sample(admins cluster.Admins, shards int) {
	var ctx context.Context
	ctx, w.stop = context.WithCancel(context.Background())
	for name := range admins {
		w.wg.Go(func() { w.sample(ctx, admins, name, shards) })
	}
}

func (w *Watch) sample(ctx context.Context, admins cluster.Admins, name string, shards int) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	last := make([]cluster.Digest, shards)
	for {
		for shard := range last {
			d, err := admins.Digest(ctx, name, rowraft.ShardID(shard), 0, samplePatience)
			if err != nil || d == last[shard] {
				continue
			}
			last[shard] = d
			w.mu.Lock()
			w.seen.Digests = append(w.seen.Digests, check.DigestAt{Shard: shard, Replica: name, Index: uint64(d.Index),
				Digest: d.Sum})
			w.mu.Unlock()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Close ends what Sample began.
func (w *Watch) Close() {
	if w.stop != nil {
		w.stop()
	}
	w.wg.Wait()
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
