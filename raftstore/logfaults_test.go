package raftstore

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/raftlog"
)

// faultyLog injects faults into a log backend.
type faultyLog struct {
	raftlog.Log
	mu    sync.Mutex
	store func() error           // runs before each StoreLogs; an error is returned instead
	get   func(l *raft.Log)      // may change the entry that was read
	set   func(key []byte) error // runs before each Set and SetUint64
}

func (f *faultyLog) faults() (store func() error, get func(*raft.Log), set func([]byte) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.store, f.get, f.set
}

func (f *faultyLog) StoreLogs(logs []*raft.Log) error {
	if store, _, _ := f.faults(); store != nil {
		if err := store(); err != nil {
			return err
		}
	}
	return f.Log.StoreLogs(logs)
}

func (f *faultyLog) GetLog(i uint64, l *raft.Log) error {
	err := f.Log.GetLog(i, l)
	if _, get, _ := f.faults(); get != nil && err == nil {
		get(l)
	}
	return err
}

func (f *faultyLog) SetUint64(key []byte, v uint64) error {
	if _, _, set := f.faults(); set != nil {
		if err := set(key); err != nil {
			return err
		}
	}
	return f.Log.SetUint64(key, v)
}

func (f *faultyLog) change(fn func(*faultyLog)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn(f)
}

// faultyLogs gives each node a faultyLog, found by node ID.
func faultyLogs(m *sync.Map, more func(*Options)) func(*Options) {
	return func(o *Options) {
		node := o.Node
		o.hooks.wrapLog = func(_ string, b raftlog.Log) raftlog.Log {
			f := &faultyLog{Log: b}
			m.Store(node, f)
			return f
		}
		if more != nil {
			more(o)
		}
	}
}

func faultyOf(m *sync.Map, n *testNode) *faultyLog {
	f, _ := m.Load(n.id)
	return f.(*faultyLog)
}

func waitFatal(t *testing.T, n *testNode) error {
	t.Helper()
	select {
	case err := <-n.fatal:
		return err
	case <-time.After(2 * time.Minute):
		t.Fatalf("Fatal of node %s was not called", n.id)
		return nil
	}
}

// #697: every layer forwards IsMonotonic, for both backends.
func TestLogStoresAreMonotonic(t *testing.T) {
	for _, backend := range raftlog.Backends {
		var logs sync.Map
		c := startedCluster(t, 1, faultyLogs(&logs, func(o *Options) { o.Backend = backend }))
		g := c.nodes[0].group
		for _, s := range []raft.LogStore{g.glog, g.inner, faultyOf(&logs, c.nodes[0]).Log} {
			if m, ok := s.(raft.MonotonicLogStore); !ok || !m.IsMonotonic() {
				t.Errorf("%s: %T is not monotonic", backend, s)
			}
		}
	}
}

// hangingCluster is a cluster of three, led by node-0 with the given limit for its disk. hang makes the writes to the
// log of a node hang until the returned function is called. starts counts how often raft was started on node-0.
func hangingCluster(t *testing.T, limit time.Duration) (c *testCluster, hang func(*testNode) (release func()),
	starts *atomic.Int32) {
	var logs sync.Map
	starts = new(atomic.Int32)
	disks := map[rowraft.NodeID]vfs.FS{} // without the hang
	c = patientCluster(t, 3, faultyLogs(&logs, func(o *Options) {
		if disks[o.Node] == nil {
			if o.Node == "node-0" { // the leader until it stops
				o.DiskStallLimit = limit
			}
			disks[o.Node] = vfs.NewMem()
			if err := vfs.MkdirAll(disks[o.Node], o.Dir); err != nil {
				t.Fatal(err)
			}
		}
		o.FS = disks[o.Node]
		if o.Node == "node-0" {
			o.hooks.wrapTransport = func(_ string, tr raft.Transport) raft.Transport {
				starts.Add(1)
				return tr
			}
		}
	}))
	c.propose("before")
	return c, func(n *testNode) func() {
		released := make(chan struct{})
		faultyOf(&logs, n).change(func(f *faultyLog) {
			f.store = func() error { <-released; return nil }
		})
		return sync.OnceFunc(func() { close(released) })
	}, starts
}

// #503: a leader whose disk hangs names a successor and gives its lead up. When its write has returned, it follows.
func TestLeaderWithHungDiskGivesItsLeadUp(t *testing.T) {
	c, hang, starts := hangingCluster(t, time.Second)
	l := c.leader()
	release := hang(l)
	defer release()
	f := l.group.Propose([]byte("hangs"))
	if _, _, err := f.Wait(testutil.Context(t)); rowraft.CodeOf(err) != rowraft.CodeLeadershipLost {
		t.Errorf("the hung proposal ended with %v, want an unknown outcome", err)
	}
	if _, _, isMe := l.group.Leader(); isMe {
		t.Error("it still leads")
	}
	if _, _, err := l.group.Propose([]byte("x")).Wait(testutil.Context(t)); rowraft.CodeOf(err) != rowraft.CodeStarting {
		t.Errorf("proposal during the stall: %v, want a refusal", err)
	}
	c.propose("after") // to the successor: no other campaigns before the patient timers say so
	release()
	c.converged(c.propose("again"))
	if err := l.group.Err(); err != nil {
		t.Error(err)
	}
	if starts.Load() == 1 || l.group.Status().Restarts == 0 {
		t.Error("raft was not started again")
	}
}

// A disk that hangs for ten times the limit ends the group forever.
func TestWatchdogStopsGroupWithHungDisk(t *testing.T) {
	c, hang, starts := hangingCluster(t, 100*time.Millisecond)
	l, before := c.leader(), starts.Load()
	release := hang(l)
	defer release()
	f := l.group.Propose([]byte("hangs"))
	if err := waitFatal(t, l); !strings.Contains(err.Error(), "disk stall") || !strings.Contains(err.Error(), l.dir) {
		t.Errorf("Fatal(%v), want a disk stall in %s", err, l.dir)
	}
	if l.group.Err() == nil || l.group.Status().Role != RoleStopped {
		t.Errorf("status after the stall: %+v", l.group.Status())
	}
	if _, _, err := l.group.Propose([]byte("x")).Wait(testutil.Context(t)); rowraft.CodeOf(err).MaybeApplied() {
		t.Errorf("proposal after the stall: %v, want a refusal", err)
	}
	if _, _, err := f.Wait(testutil.Context(t)); !rowraft.CodeOf(err).MaybeApplied() {
		t.Errorf("the hung proposal ended with %v, want an unknown outcome", err)
	}
	release()
	last := c.propose("after")
	c.stop(l)
	if starts.Load() != before {
		t.Error("raft was started again in a group that has failed")
	}
	c.start(l)
	c.converged(max(last, c.propose("again")))
}

// A group closes while a write to its log hangs, whether or not it returns.
func TestAGroupClosesWhileItsDiskHangs(t *testing.T) {
	for _, returns := range []bool{false, true} {
		t.Run(fmt.Sprintf("returns=%v", returns), func(t *testing.T) {
			t.Parallel()
			c, hang, starts := hangingCluster(t, 2*time.Second)
			l, before := c.leader(), starts.Load()
			release := hang(l)
			defer release()
			_, _, _ = l.group.Propose([]byte("hangs")).Wait(testutil.Context(t))
			if returns {
				go func() {
					<-l.group.stop
					release()
				}()
			}
			if err := l.group.Close(); returns && err != nil || !returns && !errors.Is(err, errHangs) {
				t.Errorf("closed with %v", err)
			}
			if err := l.group.Err(); err != nil {
				t.Errorf("the group failed while it closed: %v", err)
			}
			if starts.Load() != before {
				t.Error("raft was started again in a group that closes")
			}
		})
	}
}

// A log store error ends the group: no retry, no vote, no acknowledgement.
func TestLogErrorIsFatal(t *testing.T) {
	for _, tc := range []struct {
		name   string
		inject func(*faultyLog)
		want   string
	}{
		{"append fails", func(f *faultyLog) { f.store = func() error { return syscall.EIO } }, "append to the log"},
		{"disk is full", func(f *faultyLog) { f.store = func() error { return syscall.ENOSPC } }, "the disk is full"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var logs sync.Map
			c := patientCluster(t, 3, faultyLogs(&logs, nil))
			c.propose("before")
			l := c.leader()
			faultyOf(&logs, l).change(tc.inject)
			_, _, err := l.group.Propose([]byte("x")).Wait(testutil.Context(t))
			if rowraft.CodeOf(err) != rowraft.CodeLeadershipLost {
				t.Errorf("the proposal ended with %v, want an unknown outcome", err)
			}
			if err := waitFatal(t, l); !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), l.dir) {
				t.Errorf("Fatal(%v), want %q and the directory", err, tc.want)
			}
			// Without the failed node the other two elect and serve.
			c.elect(c.nodes[1])
			c.propose("after")
			testutil.Eventually(t, "raft of the failed group ends", func() bool { return l.group.run.Load() == nil })
			c.stop(l)
			c.start(l)
			c.converged(c.propose("again"))
		})
	}
}

// A term that cannot be stored makes raft panic; the guard ends the group instead.
func TestStableStoreErrorIsFatal(t *testing.T) {
	var logs sync.Map
	c := patientCluster(t, 3, faultyLogs(&logs, nil))
	c.propose("before")
	f := c.nodes[2]
	faultyOf(&logs, f).change(func(l *faultyLog) { l.set = func([]byte) error { return syscall.EIO } })
	c.elect(c.nodes[1]) // an election, in a new term
	if err := waitFatal(t, f); !strings.Contains(err.Error(), "store the term") {
		t.Errorf("Fatal(%v), want the term", err)
	}
}
