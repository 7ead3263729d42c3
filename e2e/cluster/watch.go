package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/e2e/check"
)

// Lead is one shard's leadership.
type Lead struct {
	Shard rowraft.ShardID
	Term  rowraft.Term
}

// Watch samples who leads and the digests of all replicas, all along, and
// remembers them.
//
// A status is not one moment: role and term are read one after the other. So a
// server counts as the leader of a term when it says so twice in a row: its term
// did not change in between, and in between it was asked for its role.
type Watch struct {
	c      *Cluster
	now    func() int64
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	previous map[string]map[Lead]bool     // server → claims of its last sample
	leaders  map[Lead]map[string]bool     // confirmed, by replica
	newest   map[rowraft.ShardID]Leader   // of the highest confirmed term
	last     map[replicaOn]check.DigestAt // newest digest of each replica
	seen     Sights
}

type replicaOn struct {
	server string
	shard  rowraft.ShardID
}

// Sights is what a Watch has seen, for the checkers.
type Sights struct {
	Leads   []check.Leading  `json:"leads"`   // each replica and term once
	Digests []check.DigestAt `json:"digests"` // of all replicas, while they change and after
}

// Leader is a server that leads a shard.
type Leader struct {
	Server string
	Term   rowraft.Term
}

const (
	watchEvery    = 50 * time.Millisecond
	digestEvery   = 3 // samples
	watchPatience = 300 * time.Millisecond
)

// NewWatch starts to watch; Close ends it. now is the clock of what is seen.
func (c *Cluster) NewWatch(now func() int64) *Watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := newWatch(now)
	w.c, w.cancel = c, cancel
	for _, name := range c.Names() {
		w.wg.Go(func() { w.follow(ctx, name) })
	}
	return w
}

func newWatch(now func() int64) *Watch {
	return &Watch{
		now: now, previous: make(map[string]map[Lead]bool), leaders: make(map[Lead]map[string]bool),
		newest: make(map[rowraft.ShardID]Leader), last: make(map[replicaOn]check.DigestAt),
	}
}

func (w *Watch) Close() {
	w.cancel()
	w.wg.Wait()
}

func (w *Watch) follow(ctx context.Context, name string) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for i := 0; ; i++ {
		rs, err := w.c.Replicas(ctx, name, watchPatience)
		if err != nil {
			rs = nil
		}
		w.note(name, rs)
		if i%digestEvery == 0 {
			for _, r := range rs {
				if d, err := w.c.Digest(ctx, name, r.Shard, 0, watchPatience); err == nil {
					w.noteDigest(name, r, d)
				}
			}
		}
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
		if !w.leaders[lead][r.ID] {
			w.leaders[lead][r.ID] = true
			w.seen.Leads = append(w.seen.Leads, check.Leading{Shard: int(r.Shard), Term: uint64(r.Term), Replica: r.ID,
				At: w.now()})
		}
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

// noteDigest remembers a digest, unless it is the replica's last one again.
func (w *Watch) noteDigest(name string, r Replica, d Digest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := check.DigestAt{Shard: int(r.Shard), Replica: r.ID, Index: uint64(d.Index), Digest: d.Sum}
	on := replicaOn{name, r.Shard}
	if w.last[on] != at {
		w.last[on] = at
		w.seen.Digests = append(w.seen.Digests, at)
	}
}

// Seen returns all that was seen so far.
func (w *Watch) Seen() Sights {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Sights{slices.Clone(w.seen.Leads), slices.Clone(w.seen.Digests)}
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
