package raftstore

import (
	"github.com/rowraft/rowraft/internal/testutil"

	"bytes"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// slowInstalls holds the snapshots that a leader sends, after their first half, until goOn is closed.
type slowInstalls struct {
	raft.Transport
	began func()
	goOn  <-chan struct{}
}

func (s *slowInstalls) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest,
	resp *raft.RequestPreVoteResponse) error {
	return s.Transport.(raft.WithPreVote).RequestPreVote(id, target, args, resp)
}

func (s *slowInstalls) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest,
	resp *raft.InstallSnapshotResponse, data io.Reader) error {
	half := make([]byte, args.Size/2)
	if _, err := io.ReadFull(data, half); err != nil {
		return err
	}
	s.began()
	<-s.goOn
	return s.Transport.InstallSnapshot(id, target, args, resp, io.MultiReader(bytes.NewReader(half), data))
}

const keepEvery = 64 << 10 // bytes of log between two snapshots

// TestTheLogWaitsForASnapshotThatIsSent: entries that are written while a leader sends a snapshot stay in the log until
// the follower has them, so under load the follower needs only one snapshot. Too many entries are cut, because they
// would fill the disk.
func TestTheLogWaitsForASnapshotThatIsSent(t *testing.T) {
	for _, tc := range []struct {
		name    string
		entries int // of 4 KiB, while the snapshot is on its way
		again   bool
	}{
		{"three snapshots later", 3 * keepEvery >> 12, false},
		{"too much", 3 * keepFactor * keepEvery >> 12, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for range 5 {
				n, ok := snapshotIsSentWhile(t, tc.entries)
				if ok && n > 0 && (n > 1) == tc.again {
					return
				}
				t.Logf("the follower restored %d snapshots (one leader all the time: %v); an answer that was lost brings another "+
					"one: once more", n, ok)
			}
			t.Errorf("the follower never restored as many snapshots as it should; more than one: %v", tc.again)
		})
	}
}

// snapshotIsSentWhile proposes entries while a follower receives a snapshot. It returns how many snapshots the follower
// restored and whether one node led all the time.
func snapshotIsSentWhile(t *testing.T, entries int) (restored int, ok bool) {
	began, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	c := patientCluster(t, 3, func(o *Options) {
		o.SegmentSizeBytes = 64 << 10
		o.SnapshotEveryBytes = keepEvery
		o.TrailingLogBytes = 8 << 10
		o.WedgeTimeout = time.Minute
		o.hooks.tick = 5 * time.Millisecond
		o.hooks.wrapTransport = func(_ string, tr raft.Transport) raft.Transport {
			return &slowInstalls{tr, func() { once.Do(func() { close(began) }) }, goOn}
		}
	})
	pad := string(make([]byte, 4<<10))
	taken := func() (n int) {
		for range 2 * keepEvery >> 12 {
			c.propose(pad)
		}
		list, err := c.leader().group.snaps.List()
		if err != nil || len(list) == 0 {
			return 0
		}
		return len(list)
	}
	c.propose("first")
	slow := c.followers()[0]
	c.stop(slow)
	testutil.Eventually(t, "the leader cut its log", func() bool {
		first, err := c.leader().group.inner.FirstIndex()
		return taken() > 0 && err == nil && first > 2*sentEntries // see outrun
	})
	c.start(slow)
	<-began
	leader := c.leader()
	was := leader.group.Status().SnapshotIndex
	for i := range entries {
		c.propose(fmt.Sprint(i, pad))
	}
	testutil.Eventually(t, "another snapshot was taken", func() bool { return leader.group.Status().SnapshotIndex > was })
	close(goOn)
	c.converged(c.propose("last"))
	return slow.machine.restored(), c.leader() == leader
}

// TestAShortLogIsNotCut: a log with fewer bytes than should stay before a snapshot is not cut, although it grows while
// the snapshot is taken.
func TestAShortLogIsNotCut(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.nodes[0]
	c.open(n)
	began, goOn := make(chan struct{}), make(chan struct{})
	n.machine.beforeWrite = func() {
		close(began)
		<-goOn
	}
	c.startGroup(n)
	c.propose("before")
	taken := make(chan error, 1)
	go func() { taken <- n.group.Snapshot() }()
	<-began
	for i := range 20 {
		c.propose(fmt.Sprint(i))
	}
	close(goOn)
	if err := <-taken; err != nil {
		t.Fatal(err)
	}
	if first, err := n.group.inner.FirstIndex(); first != 1 || err != nil {
		t.Errorf("the log begins at entry %d, %v: want 1", first, err)
	}
}

// TestALogDoesNotGrowWithEachStart: the size of entries from before a start is unknown, so the first snapshot after the
// start deletes them.
func TestALogDoesNotGrowWithEachStart(t *testing.T) {
	c := newTestCluster(t, 1, func(o *Options) { o.TrailingLogBytes = 64 << 10 })
	n := c.nodes[0]
	pad := string(make([]byte, 4<<10))
	for range 4 {
		c.start(n)
		for range 8 {
			c.propose(pad)
		}
		if err := n.group.Snapshot(); err != nil {
			t.Fatal(err)
		}
		first, err := n.group.inner.FirstIndex()
		if err != nil {
			t.Fatal(err)
		}
		if last := n.group.Status().LastIndex; uint64(last)-first > 32 {
			t.Fatalf("the log has the entries from %d to %d", first, last)
		}
		c.stop(n)
	}
}
