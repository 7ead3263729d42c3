package raftstore

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/armon/go-metrics"
	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// pipeNet connects peer ports inside one process without a socket, so that virtual time passes
// while a connection waits. The address of a node is its ID.
type pipeNet struct {
	mu    sync.Mutex
	ports map[string]*pipePort
}

type pipePort struct {
	net    *pipeNet
	name   string
	dialed chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipePort) Accept() (net.Conn, error) {
	select {
	case c := <-p.dialed:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipePort) Close() error {
	p.once.Do(func() {
		p.net.mu.Lock()
		delete(p.net.ports, p.name)
		p.net.mu.Unlock()
		close(p.closed)
	})
	return nil
}

func (p *pipePort) Addr() net.Addr { return &net.TCPAddr{} }

func (n *pipeNet) listen(name string) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := &pipePort{net: n, name: name, dialed: make(chan net.Conn), closed: make(chan struct{})}
	n.ports[name] = p
	return p
}

func (n *pipeNet) dial(ctx context.Context, name string) (net.Conn, error) {
	n.mu.Lock()
	p := n.ports[name]
	n.mu.Unlock()
	if p == nil {
		return nil, fmt.Errorf("node %s does not listen", name)
	}
	near, far := net.Pipe()
	select {
	case p.dialed <- far:
		return near, nil
	case <-p.closed:
	case <-ctx.Done():
	}
	near.Close()
	return nil, net.ErrClosed
}

// dispatchPause is a sink of raft's metrics. While it is armed, each append of the leader waits at the
// end of raft's dispatchLogs: the replicators have been woken, and the caller continues later. It is the
// only place between the two at which a test can stop raft.
type dispatchPause struct {
	metrics.BlackholeSink
	armed atomic.Int64 // time.Duration
}

func (s *dispatchPause) AddSampleWithLabels(key []string, _ float32, _ []metrics.Label) {
	if slices.Contains(key, "dispatchLog") {
		time.Sleep(time.Duration(s.armed.Load())) //tidy:allow sleep virtual time
	}
}

// slowReplication delays the entries for every replica but one by twice the pause.
type slowReplication struct {
	raft.Transport
	raft.WithPreVote
	pause *dispatchPause
	fast  raft.ServerID
}

func (s *slowReplication) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse) error {
	if id != s.fast && len(args.Entries) > 0 {
		time.Sleep(2 * time.Duration(s.pause.armed.Load())) //tidy:allow sleep virtual time
	}
	return s.Transport.AppendEntries(id, target, args, resp)
}

// TestAPromotionCommitsWithoutFurtherEntries: one of three voters is dead and a learner is promoted, so
// that the learner's own answer decides. The answer arrives before raft counts the learner as a voter,
// the answer of the other voter afterwards, and no client pushes. The promotion must be committed all
// the same.
func TestAPromotionCommitsWithoutFurtherEntries(t *testing.T) {
	pause := &dispatchPause{}
	conf := metrics.DefaultConfig("test")
	conf.EnableRuntimeMetrics = false
	if _, err := metrics.NewGlobal(conf, pause); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { metrics.NewGlobal(conf, &metrics.BlackholeSink{}) })

	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wire := &pipeNet{ports: map[string]*pipePort{}}
		learner := Member{"r3", "n3"}
		var founders []Member
		for i := range 3 {
			founders = append(founders, Member{rowraft.ReplicaID(fmt.Sprint("r", i)), rowraft.NodeID(fmt.Sprint("n", i))})
		}
		start := func(m Member, bootstrap []Member) (*Group, *Store) {
			disk := vfs.NewMem()
			if err := vfs.MkdirAll(disk, "/node"); err != nil {
				t.Fatal(err)
			}
			o := crashOptions(disk)
			o.Node, o.Listener, o.Dial = m.Node, wire.listen(string(m.Node)), wire.dial
			o.Resolve = func(id rowraft.NodeID) (string, error) { return string(id), nil }
			o.hooks.wrapTransport = func(_ string, tr raft.Transport) raft.Transport {
				return &slowReplication{tr, tr.(raft.WithPreVote), pause, raft.ServerID(learner.Replica)}
			}
			s, err := Open(o)
			if err != nil {
				t.Fatal(err)
			}
			g, err := s.StartGroup(GroupConfig{ID: "shard-0", Replica: m.Replica, Machine: &listMachine{}, Bootstrap: bootstrap})
			if err != nil {
				t.Fatal(err)
			}
			return g, s
		}
		var stores []*Store
		t.Cleanup(func() {
			pause.armed.Store(0)
			for _, s := range stores {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
		var groups []*Group
		for _, m := range founders {
			g, s := start(m, founders)
			groups, stores = append(groups, g), append(stores, s)
		}
		leader := -1
		for leader < 0 {
			time.Sleep(100 * time.Millisecond) //tidy:allow sleep virtual time
			leader = slices.IndexFunc(groups, func(g *Group) bool { _, _, me := g.Leader(); return me })
		}
		l := groups[leader]
		if _, _, err := l.Propose([]byte("an entry")).Wait(ctx); err != nil {
			t.Fatal(err)
		}
		dead := (leader + 1) % 3
		if err := stores[dead].Close(); err != nil {
			t.Fatal(err)
		}
		stores = slices.Delete(stores, dead, dead+1)

		_, s := start(learner, nil)
		stores = append(stores, s)
		m, err := l.Members()
		if err == nil {
			m, err = l.AddLearner(ctx, learner, m.Index)
		}
		if err != nil {
			t.Fatal(err)
		}
		for in, _ := m.Find(learner.Replica); !in.CaughtUp; in, _ = m.Find(learner.Replica) {
			time.Sleep(100 * time.Millisecond) //tidy:allow sleep virtual time
			if m, err = l.Members(); err != nil {
				t.Fatal(err)
			}
		}

		pause.armed.Store(int64(20 * time.Millisecond)) // long enough for every answer
		m, err = l.Promote(ctx, learner.Replica, m.Index)
		if err != nil {
			t.Fatalf("promote: %v", err)
		}
		if in, _ := m.Find(learner.Replica); !in.Voter {
			t.Errorf("after the promotion: %+v, want a voter", in)
		}
	})
}
