package raftstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/entry"
	"github.com/rowraft/rowraft/raftstore/logstore"
	"github.com/rowraft/rowraft/raftstore/raftlog"
	"github.com/rowraft/rowraft/raftstore/timers"
	"github.com/rowraft/rowraft/raftstore/transport"
)

// Traps of the libraries that guards_test.go, logfaults_test.go and install_test.go do not cover. docs/testing.md has
// the table of all traps.

// Settings whose defaults are wrong for us, and one whose default is right.
func TestRaftSettings(t *testing.T) {
	c := startedCluster(t, 1, nil)
	g := c.nodes[0].group
	got := g.raftConfig(timers.Fast.Heartbeat, timers.Fast.Heartbeat, nil)
	for _, tc := range []struct {
		name      string
		got, want any
	}{
		{"MaxAppendEntries: entries are large", got.MaxAppendEntries, 32},
		{"PreVoteDisabled: a replica that was cut off must not depose the leader", got.PreVoteDisabled, false},
		{"SnapshotThreshold: raft counts entries, the supervisor counts bytes", got.SnapshotThreshold,
			uint64(raftSnapshotThreshold)},
		{"TrailingLogs: set by bytes before each snapshot", got.TrailingLogs, uint64(0)},
		{"BatchApplyCh: proposals share an fsync", got.BatchApplyCh, true},
		{"ShutdownOnRemove: the group closes itself", got.ShutdownOnRemove, false},
		{"HeartbeatTimeout", got.HeartbeatTimeout, timers.Fast.Heartbeat},
		{"ElectionTimeout", got.ElectionTimeout, timers.Fast.Heartbeat},
		{"LeaderLeaseTimeout", got.LeaderLeaseTimeout, timers.Fast.LeaderLease},
		{"CommitTimeout: how stale an idle follower is", got.CommitTimeout, timers.Fast.Commit},
		{"an RPC: raft's 10 s block heartbeats for as long after a one-way cut", transport.RPCTimeout, time.Second},
	} {
		if tc.got != tc.want {
			t.Errorf("%s is %v, want %v", tc.name, tc.got, tc.want)
		}
	}
	if err := raft.ValidateConfig(got); err != nil {
		t.Error(err)
	}
}

// Raft counts an entry as applied when it has sent it to the machine. A read waits for the machine.
func TestWaitAppliedWaitsForTheMachine(t *testing.T) {
	c := newTestCluster(t, 1, nil)
	n := c.nodes[0]
	c.open(n)
	block := make(chan struct{})
	n.machine.beforeApply = func(_ rowraft.Index, e []byte) any {
		if string(e) == "slow" {
			<-block
		}
		return nil
	}
	c.startGroup(n)
	c.propose("warm")
	r := n.group.run.Load().raft
	index := n.group.Status().LastIndex + 1
	f := n.group.Propose([]byte("slow"))
	testutil.Eventually(t, "raft calls the entry applied", func() bool { return r.AppliedIndex() == uint64(index) })
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := n.group.WaitApplied(ctx, index); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("WaitApplied(%d) returned %v while the machine is at %d", index, err, n.machine.AppliedIndex())
	}
	if s := n.group.Status(); s.AppliedIndex >= index || s.BacklogBytes == 0 {
		t.Errorf("status says applied %d of %d, backlog %d bytes", s.AppliedIndex, index, s.BacklogBytes)
	}
	close(block)
	if _, _, err := f.Wait(testutil.Context(t)); err != nil {
		t.Fatal(err)
	}
	if err := n.group.WaitApplied(testutil.Context(t), index); err != nil {
		t.Fatal(err)
	}
}

// Any answer of a follower renews its contact. Its position comes only from the entries that it took.
func TestContactIsNoProgress(t *testing.T) {
	var wedged atomic.Value
	wedged.Store(raft.ServerID(""))
	c := patientCluster(t, 3, func(o *Options) {
		o.WedgeTimeout = time.Hour
		o.hooks.wrapTransport = func(_ string, tr raft.Transport) raft.Transport {
			return &wedgingTransport{Network: tr.(*transport.Network), wedged: &wedged}
		}
	})
	c.converged(c.propose("before"))
	l, f := c.leader(), c.followers()[0]
	wedged.Store(raft.ServerID(replicaOf(f.id)))
	for i := range 20 {
		c.propose(fmt.Sprint(i))
	}
	began := time.Now()
	testutil.Eventually(t, "a heartbeat is answered", func() bool {
		for _, m := range l.group.Status().Members {
			if m.Node == f.id && m.LastContact.After(began) {
				if m.LagEntries < 20 {
					t.Errorf("a follower that got none of 20 entries lags %d", m.LagEntries)
				}
				return true
			}
		}
		return false
	})
	wedged.Store(raft.ServerID(""))
}

// #522: a leader that cannot read its snapshots while a follower needs one stops.
// A leader that can write a new one continues.
func TestLeaderThatCannotReadItsSnapshotsStops(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(dir string) error
		stops bool
	}{
		{"the directory is gone", os.RemoveAll, true},
		{"the snapshots are gone", func(dir string) error { return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)) },
			false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := startedCluster(t, 3, func(o *Options) {
				o.Backend = raftlog.Bolt
				o.TrailingLogBytes = 1
				o.WedgeTimeout = time.Second
				o.hooks.tick = 10 * time.Millisecond
			})
			c.converged(c.propose("first"))
			behind := c.followers()[0]
			c.stop(behind)
			c.outrun("")
			c.converged(c.propose("covered"))
			for _, n := range c.nodes {
				if n.group != nil {
					if err := n.group.Snapshot(); err != nil {
						t.Fatal(err)
					}
				}
			}
			c.propose("beyond")
			// Both, because the leadership may move on a busy machine.
			fatal := make(chan error, 2)
			for _, n := range c.nodes {
				if n.group != nil {
					if err := tc.spoil(n.snapshotDir()); err != nil {
						t.Fatal(err)
					}
					go func(from chan error) {
						select {
						case err := <-from:
							fatal <- err
						case <-t.Context().Done():
						}
					}(n.fatal)
				}
			}
			c.start(behind)
			if !tc.stops {
				c.converged(c.propose("last"))
				return
			}
			select {
			case err := <-fatal:
				if !strings.Contains(err.Error(), "snapshots in "+os.TempDir()) ||
					!strings.Contains(err.Error(), "cannot be read") {
					t.Errorf("Fatal(%v), want the snapshots and their directory", err)
				}
			case <-time.After(2 * time.Minute):
				t.Error("the leader still leads")
			}
		})
	}
}

// rqlite #2759: an install whose restore fails changes neither machine nor index, and the next install succeeds.
func TestFailedRestoreChangesNothing(t *testing.T) {
	c := patientCluster(t, 3, func(o *Options) {
		o.Backend = raftlog.Bolt
		o.TrailingLogBytes = 1
	})
	c.converged(c.propose("first"))
	behind := c.nodes[2]
	c.stop(behind)
	c.outrun("")
	for _, n := range c.nodes {
		if n.group != nil {
			if err := n.group.Snapshot(); err != nil {
				t.Fatal(err)
			}
		}
	}
	cut := c.leader().group.Status().SnapshotIndex
	c.propose("beyond")
	c.open(behind)
	seen := make(chan rowraft.Index, 100)
	var fails atomic.Int64
	fails.Store(2)
	behind.machine.beforeRestore = func() error {
		if fails.Add(-1) < 0 {
			return nil
		}
		seen <- behind.machine.AppliedIndex()
		return errors.New("injected: the restore fails")
	}
	c.startGroup(behind)
	c.converged(c.propose("last"))
	if len(seen) != 2 {
		t.Errorf("%d restores failed, want 2", len(seen))
	}
	for range len(seen) {
		if i := <-seen; i >= cut { // entries on their way when it stopped may have come
			t.Errorf("the machine was at index %d when its restore failed, the snapshot is at %d", i, cut)
		}
	}
	if behind.machine.ignored != 0 {
		t.Errorf("%d entries reached the machine twice", behind.machine.ignored)
	}
}

// openTestLog opens the log of owner with META in dir. The shared log in rowsDir is closed with the test.
func openTestLog(t *testing.T, backend, rowsDir, dir string, owner raftlog.Owner) raftlog.Log {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	rows, err := raftlog.OpenShared(vfs.OS, rowsDir, owner.Cluster, owner.Node, raftlog.MinSegmentBytes, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rows.Close(); err != nil {
			t.Error(err)
		}
	})
	b, err := raftlog.Open(vfs.OS, backend, dir, owner, rows, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A log that cannot create its next segment fails. So proposals are refused while it can still create two, and
// take what the groups have accepted.
func TestReserveHoldsSegmentsAndProposals(t *testing.T) {
	var free atomic.Int64
	free.Store(1 << 40)
	c := startedCluster(t, 1, func(o *Options) {
		o.DiskReserveBytes = 1
		o.FS = smallDisk{vfs.OS, &free}
		o.hooks.tick = 5 * time.Millisecond
	})
	n := c.nodes[0]
	c.propose("before")
	reserve := 2*(1<<20) + n.store.opts.MaxPendingBytes
	free.Store(reserve - 1)
	testutil.Eventually(t, "a proposal is refused", func() bool {
		_, _, err := n.group.Propose([]byte("x")).Wait(testutil.Context(t))
		return rowraft.CodeOf(err) == rowraft.CodeOverloaded
	})
	free.Store(reserve)
	c.propose("after")
}

// After a cut of a prefix a log returns the right entries or none. After a cut of a suffix or of the whole it returns
// none: a conflicting entry must not return.
func TestCutLogServesNothingWrong(t *testing.T) {
	for _, backend := range raftlog.Backends {
		t.Run(backend, func(t *testing.T) {
			b := openTestLog(t, backend, t.TempDir(), t.TempDir(), testOwner)
			defer b.Close()
			store := func(term, from, to uint64) {
				t.Helper()
				var logs []*raft.Log
				for i := from; i <= to; i++ {
					l := &raft.Log{Index: i, Term: term, Data: make([]byte, 1<<10)}
					l.Extensions = entry.Seal(l.Data)
					if err := entry.Complete(l); err != nil {
						t.Fatal(err)
					}
					logs = append(logs, l)
				}
				if err := b.StoreLogs(logs); err != nil {
					t.Fatal(err)
				}
			}
			want := map[uint64]uint64{} // index → term that may be served
			check := func(what string) {
				t.Helper()
				for i := range uint64(300) {
					var l raft.Log
					switch err := b.GetLog(i, &l); {
					case errors.Is(err, raft.ErrLogNotFound):
					case err != nil:
						t.Fatalf("%s: entry %d: %v", what, i, err)
					case l.Index != i || want[i] != l.Term:
						t.Errorf("%s: entry %d reads as %d of term %d, want term %d", what, i, l.Index, l.Term, want[i])
					}
				}
			}
			put := func(term, from, to uint64) {
				store(term, from, to)
				for i := from; i <= to; i++ {
					want[i] = term
				}
			}
			put(1, 1, 200)
			if err := b.DeleteRange(1, 150); err != nil {
				t.Fatal(err)
			}
			check("after a prefix was cut")
			if err := b.DeleteRange(180, 200); err != nil {
				t.Fatal(err)
			}
			for i := uint64(180); i <= 200; i++ {
				delete(want, i)
			}
			check("after a suffix was cut")
			put(2, 180, 190)
			check("with other entries in the suffix")
			if err := b.DeleteRange(151, 190); err != nil {
				t.Fatal(err)
			}
			clear(want)
			check("after all was cut")
			put(3, 250, 260)
			check("after a snapshot")
		})
	}
}

// A skipped entry stops the group: the machine must see all entries.
func TestGapStopsTheMachine(t *testing.T) {
	var fatal error
	m := &listMachine{}
	led := logstore.NewLedger(nil)
	f := newFSM(m, led, func(err error) { fatal = err }, func(uint64, uint64) {})
	entry := func(i uint64) *raft.Log {
		l := &raft.Log{Index: i, Term: 1, Type: raft.LogCommand, Data: []byte("x"), Extensions: entry.Seal([]byte("x"))}
		if err := entry.Complete(l); err != nil {
			t.Fatal(err)
		}
		led.Observe(l)
		return l
	}
	one, _, three := entry(1), entry(2), entry(3)
	f.ApplyBatch([]*raft.Log{one})
	if n, _ := m.state(); n != 1 || fatal != nil {
		t.Fatalf("the first entry: %d applied, %v", n, fatal)
	}
	if f.ApplyBatch([]*raft.Log{one}); fatal != nil { // as after a restart in place
		t.Fatalf("an entry that was applied before: %v", fatal)
	}
	out := f.ApplyBatch([]*raft.Log{three})
	if _, failed := out[0].(fsmFailure); !failed || fatal == nil || !strings.Contains(fatal.Error(), "gap") {
		t.Errorf("entry 3 after 1 answered %v, Fatal(%v)", out[0], fatal)
	}
	if n, _ := m.state(); n != 1 || m.ignored != 0 {
		t.Errorf("the machine holds %d entries and was given %d old ones", n, m.ignored)
	}
}

// When raft ends, it may drop a batch and pass the next one. That does not stop the group: after a restart in place
// raft passes all of them again.
func TestGapWhileRaftEnds(t *testing.T) {
	m := &listMachine{}
	led := logstore.NewLedger(nil)
	f := newFSM(m, led, func(err error) { t.Error(err) }, func(uint64, uint64) {})
	var logs []*raft.Log
	for i := uint64(1); i <= 4; i++ {
		l := &raft.Log{Index: i, Term: 1, Type: raft.LogCommand, Data: []byte("x"), Extensions: entry.Seal([]byte("x"))}
		if err := entry.Complete(l); err != nil {
			t.Fatal(err)
		}
		led.Observe(l)
		logs = append(logs, l)
	}
	f.ApplyBatch(logs[:1])
	f.stopping.Store(true)
	for _, l := range logs[2:] {
		if out := f.ApplyBatch([]*raft.Log{l}); out[0] != (fsmFailure{}) {
			t.Errorf("entry %d after a gap answered %v", l.Index, out[0])
		}
	}
	if n, _ := m.state(); n != 1 {
		t.Errorf("%d entries were applied, want those before the gap", n)
	}
	f.stopping.Store(false)
	f.ApplyBatch(logs)
	if n, _ := m.state(); n != 4 {
		t.Errorf("%d entries after the restart, want 4", n)
	}
}

// The registry has what the directories of groups do not show.
func TestStoreWithoutItsRegistryDoesNotOpen(t *testing.T) {
	c := startedCluster(t, 1, nil)
	n := c.nodes[0]
	c.stop(n)
	if err := os.Remove(filepath.Join(n.dir, "raft", "registry")); err != nil {
		t.Fatal(err)
	}
	o := testOptions(t, n.dir, n.id, n.fatal)
	defer o.Listener.Close()
	if s, err := Open(o); rowraft.CodeOf(err) != rowraft.CodeIdentity {
		t.Errorf("Open: %v, want CodeIdentity", err)
		if err == nil {
			s.Close()
		}
	}
}

// rqlite #2747: with a state of a later index than its snapshot, entries would be applied twice.
func TestSnapshotBeyondItsOwnIndexIsRefused(t *testing.T) {
	s := testSnapshots(t)
	donor := &listMachine{index: 9}
	donor.addLocked([]byte("x"))
	snap, err := (&fsm{machine: donor}).Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	sink, err := s.Create(1, 7, 2, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(snap.Persist(sink), sink.Close()); err != nil {
		t.Fatal(err)
	}
	_, r, err := s.Open(sink.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	m := &listMachine{}
	f := newFSM(m, logstore.NewLedger(nil), func(error) {}, func(uint64, uint64) {})
	if err := f.Restore(r); rowraft.CodeOf(err) != rowraft.CodeCorrupt || m.restored() != 0 || f.applied.Load() != 0 {
		t.Errorf("restored %d times to index %d, %v; want CodeCorrupt", m.restored(), f.applied.Load(), err)
	}
}
