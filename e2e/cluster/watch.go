package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
)

// Lead is one shard's leadership.
type Lead struct {
	Shard rowraft.ShardID
	Term  rowraft.Term
}

// Watch samples who leads, all along, and remembers it.
//
// A status is not one moment: role and term are read one after the other. So a
// server counts as the leader of a term when it says so twice in a row: its term
// did not change in between, and in between it was asked for its role.
type Watch struct {
	c      *Cluster
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	previous map[string]map[Lead]bool   // server → claims of its last sample
	leaders  map[Lead]map[string]bool   // confirmed
	newest   map[rowraft.ShardID]Leader // of the highest confirmed term
	samples  int
}

// Leader is a server that leads a shard.
type Leader struct {
	Server string
	Term   rowraft.Term
}

const (
	watchEvery    = 50 * time.Millisecond
	watchPatience = 300 * time.Millisecond
)

// NewWatch starts to watch; Close ends it.
func (c *Cluster) NewWatch() *Watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Watch{c: c, cancel: cancel, previous: make(map[string]map[Lead]bool), leaders: make(map[Lead]map[string]bool), newest: make(map[rowraft.ShardID]Leader)}
	for _, name := range c.Names() {
		w.wg.Go(func() { w.follow(ctx, name) })
	}
	return w
}

func (w *Watch) Close() {
	w.cancel()
	w.wg.Wait()
}

func (w *Watch) follow(ctx context.Context, name string) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		rs, err := w.c.Replicas(ctx, name, watchPatience)
		if err != nil {
			rs = nil
		}
		w.note(name, rs)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (w *Watch) note(name string, rs []Replica) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.samples++
	before := w.previous[name]
	now := make(map[Lead]bool)
	w.previous[name] = now
	for _, r := range rs {
		lead := Lead{r.Shard, r.Term}
		if !r.Leads {
			continue
		}
		now[lead] = true
		if !before[lead] {
			continue
		}
		if w.leaders[lead] == nil {
			w.leaders[lead] = make(map[string]bool)
		}
		w.leaders[lead][name] = true
		if w.newest[r.Shard].Term <= r.Term {
			w.newest[r.Shard] = Leader{name, r.Term}
		}
	}
}

// Leader returns who leads shard, as far as known.
func (w *Watch) Leader(shard rowraft.ShardID) (Leader, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l, ok := w.newest[shard]
	return l, ok
}

// Terms returns how many terms with a leader were seen.
func (w *Watch) Terms() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.leaders)
}

// Doubles tells of terms that had two leaders.
func (w *Watch) Doubles() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for lead, servers := range w.leaders {
		if len(servers) > 1 {
			out = append(out, fmt.Sprintf("shard %d had %d leaders in term %d: %v", lead.Shard, len(servers), lead.Term, slices.Sorted(maps.Keys(servers))))
		}
	}
	slices.Sort(out)
	return out
}

// AwaitChange waits until a shard's leader is of a term above and returns it.
func (w *Watch) AwaitChange(ctx context.Context, shard rowraft.ShardID, above rowraft.Term) (l Leader, err error) {
	err = Poll(ctx, func() error {
		var ok bool
		if l, ok = w.Leader(shard); !ok || l.Term <= above {
			return fmt.Errorf("shard %d has no leader of a term above %d", shard, above)
		}
		return nil
	})
	return l, err
}
