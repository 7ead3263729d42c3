package route

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

const (
	// hedgeEvery limits reads that ask a second server to one in hedgeEvery, so that a cluster that is slow from
	// overload does not get twice the load. hedgeBurst of them may come at once.
	hedgeEvery = 10
	hedgeBurst = 20
	// ShunFor is how long a server that failed a bounded read comes last in the order.
	ShunFor = 2 * time.Second

	// After trial replies of servers without a replica, reads go to replicas only if most rows of these replies
	// had to be fetched; after narrowFor the next trial begins.
	trial     = 512
	narrowFor = 20 * time.Second
)

// Spread selects the servers for bounded reads. All servers of the map take turns, so that those with replicas of a hot
// shard do not get more reads than others, as long as servers without a replica answer most reads from their copies. If
// they do not, because the keys are too many or the bound is too short, only replicas are asked. The zero Spread is
// ready. Safe for concurrent use.
type Spread struct {
	next  atomic.Uint32 // turn of the next read
	saved atomic.Int64  // reads since the last hedge, at most hedgeEvery × hedgeBurst

	mu   sync.Mutex
	bad  map[badServer]time.Time // end of the time in which the server comes last
	when time.Time               // last removal of old entries from bad

	replies, keys, fetched int       // of servers without a replica, in this trial
	narrow                 time.Time // end of the time in which only replicas are asked
}

type badServer struct {
	shard rowraft.ShardID
	node  rowraft.NodeID
}

// Turn is the place of a read in the order of the servers: all shards of one read ask the same server first.
type Turn struct {
	n    uint32
	wide bool // any server may answer
}

// Next returns the turn of a read. copied means that copies can answer it.
func (s *Spread) Next(copied bool) Turn {
	t := Turn{n: s.next.Add(1), wide: copied}
	if copied {
		s.mu.Lock()
		defer s.mu.Unlock()
		t.wide = s.narrow.IsZero() || time.Now().After(s.narrow)
	}
	return t
}

// Next returns the turn for another round of a read.
func (t Turn) Next() Turn { return Turn{t.n + 1, t.wide} }

// Copied records a reply of a server without a replica, to a read of keys of which it had to fetch some.
func (s *Spread) Copied(keys, fetched int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replies, s.keys, s.fetched = s.replies+1, s.keys+keys, s.fetched+fetched
	if s.replies < trial {
		return
	}
	if 2*s.fetched > s.keys {
		s.narrow = time.Now().Add(narrowFor)
	}
	s.replies, s.keys, s.fetched = 0, 0, 0
}

// Order lists the servers that a read of a shard asks, one after the other: in a wide turn the server whose turn it is,
// then the replicas. Servers that failed recently come last.
func (s *Spread) Order(m *clustermap.Map, shard rowraft.ShardID, t Turn) (nodes []rowraft.NodeID) {
	if int(shard) >= len(m.Shards) {
		return nil
	}
	if t.wide {
		servers := m.Servers()
		for i := range servers {
			at := int(t.n) + i
			if i > 0 && len(servers) > 1 { // the others share the turns of a server that failed
				at = int(t.n) + 1 + (int(t.n)/len(servers)+i-1)%(len(servers)-1)
			}
			if node := servers[at%len(servers)].ID; !s.shunned(shard, node) {
				nodes = append(nodes, node)
				break
			}
		}
	}
	replicas := m.Shards[shard].Replicas
	var bad []rowraft.NodeID
	for i := range replicas {
		node := replicas[(int(t.n)+i)%len(replicas)].Node
		switch {
		case len(nodes) > 0 && nodes[0] == node:
		case s.shunned(shard, node):
			bad = append(bad, node)
		default:
			nodes = append(nodes, node)
		}
	}
	return append(nodes, bad...)
}

// Shun makes a server come last for reads of a shard.
func (s *Spread) Shun(shard rowraft.ShardID, node rowraft.NodeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.bad == nil {
		s.bad = make(map[badServer]time.Time)
	}
	if now.Sub(s.when) > time.Minute {
		for k, until := range s.bad {
			if now.After(until) {
				delete(s.bad, k)
			}
		}
		s.when = now
	}
	s.bad[badServer{shard, node}] = now.Add(ShunFor)
}

func (s *Spread) shunned(shard rowraft.ShardID, node rowraft.NodeID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	until, ok := s.bad[badServer{shard, node}]
	return ok && time.Now().Before(until)
}

// MayHedge takes one hedge from the saved reads. It returns false if there are too few.
func (s *Spread) MayHedge() bool {
	for {
		have := s.saved.Load()
		if have < hedgeEvery {
			return false
		}
		if s.saved.CompareAndSwap(have, have-hedgeEvery) {
			return true
		}
	}
}

// Read saves a read for hedges.
func (s *Spread) Read() {
	if s.saved.Load() < hedgeEvery*hedgeBurst {
		s.saved.Add(1)
	}
}

// SetSaved sets the number of saved reads, for tests.
func (s *Spread) SetSaved(n int64) { s.saved.Store(n) }
