package raftstore

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/raftstore/timers"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// #696 leaves two goroutines of a raft that has ended, which wait for each other
		// (TestInterruptedTransferDoesNotStopTheGroup).
		goleak.IgnoreTopFunction("github.com/hashicorp/raft.(*Raft).leadershipTransfer"),
		goleak.IgnoreTopFunction("github.com/hashicorp/raft.(*Raft).leaderLoop.func2"))
}

// listMachine appends entries to a list and returns its length. Its functions inject behaviour.
type listMachine struct {
	mu      sync.Mutex
	index   rowraft.Index
	entries [][]byte
	sum     uint64 // over all entries, in order
	ignored int    // entries at or below index

	beforeApply   func(index rowraft.Index, entry []byte) any // non-nil result ends Apply
	beforeRestore func() error                                // its error ends Restore
	beforeWrite   func()                                      // of a snapshot
	released      int
	snapped       int
	restores      int
}

func (m *listMachine) Apply(index rowraft.Index, entry []byte) any {
	if m.beforeApply != nil {
		if out := m.beforeApply(index, entry); out != nil {
			return out
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if index <= m.index {
		m.ignored++
		return nil
	}
	m.index = index
	m.addLocked(bytes.Clone(entry))
	return len(m.entries)
}

func (m *listMachine) addLocked(entry []byte) {
	m.entries = append(m.entries, entry)
	h := fnv.New64a()
	binary.Write(h, binary.LittleEndian, m.sum)
	h.Write(entry)
	m.sum = h.Sum64()
}

func (m *listMachine) AppliedIndex() rowraft.Index {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.index
}

func (m *listMachine) state() (n int, sum uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.entries), m.sum
}

func (m *listMachine) list() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]string, len(m.entries))
	for i, e := range m.entries {
		out[i] = string(e)
	}
	return out
}

func (m *listMachine) restored() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.restores
}

type listSnapshot struct {
	m       *listMachine
	index   rowraft.Index
	entries [][]byte
}

func (m *listMachine) Snapshot() (Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.snapped++
	return &listSnapshot{m, m.index, slices.Clone(m.entries)}, nil
}

func (s *listSnapshot) WriteTo(w io.Writer) (int64, error) {
	if s.m.beforeWrite != nil {
		s.m.beforeWrite()
	}
	b := bufio.NewWriter(w)
	binary.Write(b, binary.LittleEndian, uint64(s.index))
	binary.Write(b, binary.LittleEndian, uint64(len(s.entries)))
	for _, e := range s.entries {
		binary.Write(b, binary.LittleEndian, uint32(len(e)))
		b.Write(e)
	}
	return 0, b.Flush()
}

func (s *listSnapshot) Release() {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.m.released++
}

func (m *listMachine) Restore(r io.Reader) error {
	aside := &listMachine{}
	var index, n uint64
	if err := binary.Read(r, binary.LittleEndian, &index); err != nil {
		return err
	}
	if err := binary.Read(r, binary.LittleEndian, &n); err != nil {
		return err
	}
	for range n {
		var size uint32
		if err := binary.Read(r, binary.LittleEndian, &size); err != nil {
			return err
		}
		e := make([]byte, size)
		if _, err := io.ReadFull(r, e); err != nil {
			return err
		}
		aside.addLocked(e)
	}
	if m.beforeRestore != nil {
		if err := m.beforeRestore(); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.index, m.entries, m.sum = rowraft.Index(index), aside.entries, aside.sum
	m.restores++
	return nil
}

// testNode is one process of a test cluster.
type testNode struct {
	id      rowraft.NodeID
	dir     string
	store   *Store
	group   *Group
	machine *listMachine
	fatal   chan error
}

// testCluster is three nodes on loopback with one group over all of them.
type testCluster struct {
	t     testing.TB
	nodes []*testNode
	opts  func(*Options)
	conf  func(*GroupConfig)

	mu    sync.Mutex
	addrs map[rowraft.NodeID]string
}

const testCluID = "c1"

func newTestCluster(t testing.TB, n int, opts func(*Options)) *testCluster {
	c := &testCluster{t: t, opts: opts, addrs: map[rowraft.NodeID]string{}}
	for i := range n {
		c.nodes = append(c.nodes, &testNode{id: rowraft.NodeID(fmt.Sprintf("node-%d", i)), dir: t.TempDir()})
	}
	t.Cleanup(func() {
		for _, n := range c.nodes {
			c.stop(n)
		}
	})
	return c
}

func startedCluster(t testing.TB, n int, opts func(*Options)) *testCluster {
	c := newTestCluster(t, n, opts)
	for _, n := range c.nodes {
		c.start(n)
	}
	return c
}

// patient are timers with which the leader does not change, even on a busy machine. Tests choose the leader with elect.
var patient = timers.Profile{Heartbeat: 10 * time.Second, LeaderLease: 10 * time.Second, Commit: 10 * time.Millisecond}

// patientCluster is a started cluster whose first node leads, until another one is elected.
func patientCluster(t testing.TB, n int, opts func(*Options)) *testCluster {
	t.Helper()
	c := startedCluster(t, n, func(o *Options) {
		o.Profile = patient
		if opts != nil {
			opts(o)
		}
	})
	c.elect(c.nodes[0])
	return c
}

// elect makes n campaign until it leads.
func (c *testCluster) elect(n *testNode) {
	c.t.Helper()
	testutil.Eventually(c.t, fmt.Sprintf("node %s leads", n.id), func() bool {
		if _, _, me := n.group.Leader(); me {
			return c.leader() == n
		}
		who := n
		if n.group.Status().Role == RoleCandidate { // it got no votes, and would not get them without another candidate
			for _, other := range c.nodes {
				if other != n && other.running() {
					who = other
				}
			}
		}
		who.campaign()
		for range 500 {
			if _, _, me := n.group.Leader(); me {
				return c.leader() == n
			}
			//tidy:allow sleep polls, up to a deadline, what has no event
			time.Sleep(2 * time.Millisecond)
		}
		return false
	})
}

// handOver transfers the leadership until from has lost it. A transfer fails when the answer of the successor is late,
// although the successor may lead.
func (c *testCluster) handOver(from *testNode, to rowraft.ReplicaID) {
	c.t.Helper()
	testutil.Eventually(c.t, fmt.Sprintf("node %s transfers the leadership", from.id), func() bool {
		err := from.group.TransferLeadership(testutil.Context(c.t), to)
		return err == nil || rowraft.CodeOf(err) == rowraft.CodeNotLeader
	})
}

// snapshotDir is where n keeps the snapshots of its group.
func (n *testNode) snapshotDir() string {
	return filepath.Join(n.dir, "raft", "groups", "shard-0", "snapshots")
}

func (n *testNode) running() bool { return n.group != nil && n.group.run.Load() != nil }

// campaign makes a follower a candidate at once.
func (n *testNode) campaign() {
	if run := n.group.run.Load(); run != nil {
		run.trans.Campaign(time.Second)
	}
}

func replicaOf(n rowraft.NodeID) rowraft.ReplicaID { return rowraft.ReplicaID("replica-of-" + n) }

func (c *testCluster) resolve(id rowraft.NodeID) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.addrs[id]; a != "" {
		return a, nil
	}
	return "", fmt.Errorf("node %s is not up", id)
}

func testOptions(t testing.TB, dir string, id rowraft.NodeID, fatal chan error) Options {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	level := slog.LevelError + 8
	if os.Getenv("RAFTSTORE_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	return Options{
		Dir: filepath.Join(dir, "raft"), Cluster: testCluID, Node: id, Listener: ln,
		Profile:          timers.Fast,
		SegmentSizeBytes: 1 << 20,
		DiskStallLimit:   time.Minute, // shared, noisy disks
		DiskReserveBytes: -1,
		hooks:            hooks{steady: true}, // timers that follow a busy machine would restart groups
		Fatal:            func(err error) { fatal <- err },
		Logger:           slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With("node", id),
		Resolve:          func(n rowraft.NodeID) (string, error) { return "", fmt.Errorf("unknown node %s", n) },
	}
}

// open opens the store of n with a new machine, as after a process start.
func (c *testCluster) open(n *testNode) {
	c.t.Helper()
	n.fatal = make(chan error, 16)
	o := testOptions(c.t, n.dir, n.id, n.fatal)
	o.Resolve = c.resolve
	if c.opts != nil {
		c.opts(&o)
	}
	c.mu.Lock()
	c.addrs[n.id] = o.Listener.Addr().String()
	c.mu.Unlock()
	var err error
	if n.store, err = Open(o); err != nil {
		c.t.Fatalf("open node %s: %v", n.id, err)
	}
	n.machine = &listMachine{}
}

func (c *testCluster) members() []Member {
	var out []Member
	for _, n := range c.nodes {
		out = append(out, Member{replicaOf(n.id), n.id})
	}
	return out
}

func (c *testCluster) start(n *testNode) {
	c.t.Helper()
	c.open(n)
	c.startGroup(n)
}

func (c *testCluster) startGroup(n *testNode) {
	c.t.Helper()
	cfg := GroupConfig{ID: "shard-0", Replica: replicaOf(n.id), Machine: n.machine, Bootstrap: c.members()}
	if c.conf != nil {
		c.conf(&cfg)
	}
	var err error
	if n.group, err = n.store.StartGroup(cfg); err != nil {
		c.t.Fatalf("start group on node %s: %v", n.id, err)
	}
}

func (c *testCluster) stop(n *testNode) {
	if n.store == nil {
		return
	}
	if err := n.store.Close(); err != nil {
		c.t.Errorf("close node %s: %v", n.id, err)
	}
	n.store, n.group = nil, nil
	c.mu.Lock()
	delete(c.addrs, n.id)
	c.mu.Unlock()
}

// leader waits until one of the running nodes leads and can serve.
func (c *testCluster) leader() *testNode {
	c.t.Helper()
	var found *testNode
	testutil.Eventually(c.t, "a leader that serves", func() bool {
		for _, n := range c.nodes {
			if n.group == nil {
				continue
			}
			if _, _, me := n.group.Leader(); !me {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_, err := n.group.ReadIndex(ctx)
			cancel()
			if err == nil {
				found = n
				return true
			}
		}
		return false
	})
	return found
}

func (c *testCluster) followers() []*testNode {
	l := c.leader()
	var out []*testNode
	for _, n := range c.nodes {
		if n != l && n.group != nil {
			out = append(out, n)
		}
	}
	return out
}

// propose proposes entry until a proposal is known to be applied, as a client with sequence numbers does. The entry may
// be applied twice.
func (c *testCluster) propose(entry string) rowraft.Index {
	c.t.Helper()
	var index rowraft.Index
	testutil.Eventually(c.t, "a proposal is applied", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, i, err := c.leader().group.Propose([]byte(entry)).Wait(ctx)
		index = i
		return err == nil
	})
	return index
}

// outrun proposes more entries than one message has. A message to a follower that stopped is sent again when the
// follower returns, even if the log was cut: after fewer entries the follower might need no snapshot.
func (c *testCluster) outrun(pad string) {
	c.t.Helper()
	for i := range sentEntries + 8 {
		c.propose(fmt.Sprint(i, pad))
	}
}

// converged waits until all running nodes have applied index and checks that they have the same state.
func (c *testCluster) converged(index rowraft.Index) {
	c.t.Helper()
	var first *testNode
	for _, n := range c.nodes {
		if n.group == nil {
			continue
		}
		if err := n.group.WaitApplied(testutil.Context(c.t), index); err != nil {
			c.t.Fatalf("node %s: applied %d, want %d: %v; status %+v", n.id, n.group.AppliedIndex(), index, err,
				n.group.Status())
		}
		if first == nil {
			first = n
			continue
		}
		n1, s1 := first.machine.state()
		n2, s2 := n.machine.state()
		if n1 != n2 || s1 != s2 {
			c.t.Fatalf("at index %d: node %s has %d entries with sum %x, node %s has %d with %x", index, first.id, n1, s1, n.id,
				n2, s2)
		}
	}
}
