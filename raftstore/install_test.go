package raftstore

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/raftstore/raftlog"
	"github.com/rowraft/rowraft/raftstore/transport"
)

// Three defects of hashicorp/raft 1.7.3 combine after InstallSnapshot with a monotonic log. A follower whose log begins
// right after its snapshot refuses the entries that a leader repeats from there. The leader sends the snapshot again,
// and the follower drops the entries after it, acknowledged ones too. It keeps their last index in memory. The effect
// was an endless loop of installs, then a panic.

// lossyTransport loses the answers to AppendEntries with entries while lose is set.
type lossyTransport struct {
	*transport.Network
	lose, lost, installs, installed *atomic.Int64
}

func (l *lossyTransport) AppendEntries(id raft.ServerID, to raft.ServerAddress, a *raft.AppendEntriesRequest,
	r *raft.AppendEntriesResponse) error {
	err := l.Network.AppendEntries(id, to, a, r)
	if err == nil && len(a.Entries) > 0 && l.installs.Load() > 0 && l.lose.Add(-1) >= 0 {
		l.lost.Add(1)
		return errors.New("injected: the answer was lost")
	}
	return err
}

func (l *lossyTransport) InstallSnapshot(id raft.ServerID, to raft.ServerAddress, a *raft.InstallSnapshotRequest,
	r *raft.InstallSnapshotResponse, data io.Reader) error {
	l.installs.Add(1)
	err := l.Network.InstallSnapshot(id, to, a, r, data)
	if err == nil {
		l.installed.Add(1)
	}
	return err
}

func TestLostAnswersAfterInstallDoNotLoop(t *testing.T) {
	for _, backend := range raftlog.Backends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			var lose, lost, installs, installed atomic.Int64
			c := patientCluster(t, 3, func(o *Options) {
				o.Backend = backend
				o.SegmentSizeBytes = 64 << 10
				o.TrailingLogBytes = 1
				o.hooks.wrapTransport = func(_ string, tr raft.Transport) raft.Transport {
					return &lossyTransport{tr.(*transport.Network), &lose, &lost, &installs, &installed}
				}
			})
			c.propose("first")
			slow := c.followers()[0]
			c.stop(slow)
			pad := string(make([]byte, 16<<10))
			c.outrun(pad)
			l := c.leader()
			if err := l.group.Snapshot(); err != nil {
				t.Fatal(err)
			}
			for i := range 10 {
				c.propose(fmt.Sprint("b", i))
			}
			lose.Store(4)
			c.start(slow)
			c.converged(c.propose("last"))
			testutil.Eventually(t, "all four answers are lost", func() bool {
				c.propose("more")
				return lost.Load() == 4 && installs.Load() > 0
			})
			c.converged(c.propose("after"))
			if n := installed.Load(); n > 3 { // installs that began and failed on a busy machine do not count
				t.Errorf("the snapshot was sent %d times", n)
			}
		})
	}
}

// After a snapshot that replaces a log with later entries raft is restarted: it would continue with a last index that
// its log does not have.
func TestInstallBelowLastIndexRestartsRaft(t *testing.T) {
	c := patientCluster(t, 3, func(o *Options) { o.hooks.tick = 10 * time.Millisecond })
	c.converged(c.propose("x"))
	f := c.followers()[0]
	if err := f.group.Snapshot(); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		c.propose(fmt.Sprint(i))
	}
	c.converged(c.propose("y"))
	first, _ := f.group.inner.FirstIndex()
	last, _ := f.group.inner.LastIndex()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.group.glog.DeleteRange(first, last) // as raft does at the end of an install
		t.Error("raft's goroutine went on")
	}()
	<-done
	testutil.Eventually(t, "the group restarts", func() bool { return f.group.Status().Restarts == 1 })
	// All cleared entries had been confirmed, so this replica must be refused.
	testutil.Eventually(t, "the replica finds that it has less than it confirmed", func() bool {
		return rowraft.CodeOf(f.group.Err()) == rowraft.CodeFenced
	})
	c.propose("z")
	if f.machine.ignored != 0 {
		t.Errorf("%d entries reached the machine twice", f.machine.ignored)
	}
}
