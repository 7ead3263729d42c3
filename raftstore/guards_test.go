package raftstore

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/rowraft/rowraft/raftstore/raftlog"
)

// flakyTransport fails some AppendEntries with entries, before or after the follower has received them.
type flakyTransport struct {
	raft.Transport
	raft.WithPreVote
	calls, injected *atomic.Int64
}

func (f *flakyTransport) AppendEntries(id raft.ServerID, to raft.ServerAddress, a *raft.AppendEntriesRequest,
	r *raft.AppendEntriesResponse) error {
	n := int64(1)
	if len(a.Entries) > 0 {
		n = f.calls.Add(1)
	}
	if n%7 == 0 {
		f.injected.Add(1)
		return errors.New("injected before")
	}
	err := f.Transport.AppendEntries(id, to, a, r)
	if err == nil && n%11 == 0 {
		f.injected.Add(1)
		return errors.New("injected after")
	}
	return err
}

// #612: replication heals after failed AppendEntries.
func TestReplicationHealsAfterErrors(t *testing.T) {
	var calls, injected atomic.Int64
	c := startedCluster(t, 3, func(o *Options) {
		o.hooks.wrapTransport = func(_ string, tr raft.Transport) raft.Transport {
			return &flakyTransport{tr, tr.(raft.WithPreVote), &calls, &injected}
		}
	})
	var last rowraft.Index
	for i := range 60 {
		last = c.propose(fmt.Sprint(i))
	}
	c.converged(last)
	if injected.Load() < 10 {
		t.Errorf("only %d errors were injected", injected.Load())
	}
}

func TestMachineFailureStopsGroup(t *testing.T) {
	stop := func() any { return &FatalError{rowraft.Errorf(rowraft.CodeVersionTooNew, "entry version 9")} }
	for _, tc := range []struct {
		name  string
		do    func() any
		want  string
		leads bool
	}{
		{"panic of the leader's", func() any { panic("bug in apply") }, "bug in apply", true},
		{"panic of a follower's", func() any { panic("bug in apply") }, "bug in apply", false},
		{"FatalError of the leader's", stop, "entry version 9", true},
		{"FatalError of a follower's", stop, "entry version 9", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newTestCluster(t, 3, func(o *Options) { o.Profile = patient })
			for _, n := range c.nodes {
				c.open(n)
				if n == c.nodes[0] {
					n.machine.beforeApply = func(_ rowraft.Index, e []byte) any {
						if string(e) == "poison" {
							return tc.do()
						}
						return nil
					}
				}
				c.startGroup(n)
			}
			sick := c.nodes[0]
			if c.elect(c.nodes[1]); tc.leads {
				c.elect(sick)
			}
			c.propose("before")
			if tc.leads {
				_, _, err := sick.group.Propose([]byte("poison")).Wait(testutil.Context(t))
				if !rowraft.CodeOf(err).MaybeApplied() {
					t.Errorf("the poison ended with %v, want an unknown outcome", err)
				}
				c.elect(c.nodes[1])
			} else {
				c.propose("poison")
			}
			if err := waitFatal(t, sick); !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Fatal(%v), want %q", err, tc.want)
			}
			n, _ := sick.machine.state()
			c.propose("after")
			if m, _ := sick.machine.state(); m != n {
				t.Errorf("the failed machine went from %d to %d entries", n, m)
			}
		})
	}
}

func TestLostDataIsRefused(t *testing.T) {
	for _, tc := range []struct {
		name string
		lose func(dir string) error
	}{
		{"whole group directory", func(d string) error { return os.RemoveAll(filepath.Join(d, "groups", "shard-0")) }},
		{"group directory emptied", func(d string) error {
			return errors.Join(os.RemoveAll(filepath.Join(d, "groups", "shard-0")),
				os.MkdirAll(filepath.Join(d, "groups", "shard-0"), 0o700))
		}},
		{"log", func(d string) error { return os.RemoveAll(filepath.Join(d, "groups", "shard-0", "log")) }},
		{"snapshots", func(d string) error { return os.RemoveAll(filepath.Join(d, "groups", "shard-0", "snapshots")) }},
		{"registry", func(d string) error { return os.Remove(filepath.Join(d, "registry")) }},
	} {
		for _, backend := range raftlog.Backends {
			t.Run(tc.name+" with "+backend, func(t *testing.T) {
				t.Parallel()
				c := startedCluster(t, 1, func(o *Options) { o.Backend = backend })
				n := c.nodes[0]
				c.propose("x")
				c.stop(n)
				if err := tc.lose(filepath.Join(n.dir, "raft")); err != nil {
					t.Fatal(err)
				}
				err := c.tryStart(n)
				if rowraft.CodeOf(err) != rowraft.CodeIdentity {
					t.Errorf("started with %v, want CodeIdentity", err)
				}
			})
		}
	}
}

// tryStart starts n without failing the test.
func (c *testCluster) tryStart(n *testNode) error {
	o := testOptions(c.t, n.dir, n.id, make(chan error, 16))
	if c.opts != nil {
		c.opts(&o)
	}
	s, err := Open(o)
	if err != nil {
		o.Listener.Close()
		return err
	}
	n.store = s
	_, err = s.StartGroup(GroupConfig{ID: "shard-0", Replica: replicaOf(n.id), Machine: &listMachine{},
		Bootstrap: c.members()})
	return err
}

func TestIdentityIsChecked(t *testing.T) {
	c := startedCluster(t, 1, nil)
	n := c.nodes[0]
	if _, err := Open(testOptions(t, n.dir, n.id, n.fatal)); rowraft.CodeOf(err) != rowraft.CodeIdentity {
		t.Errorf("second Open of one directory: %v, want CodeIdentity", err)
	}
	c.stop(n)
	for _, change := range []func(*Options){
		func(o *Options) { o.Cluster = "other" },
		func(o *Options) { o.Node = "other" },
	} {
		o := testOptions(t, n.dir, n.id, n.fatal)
		change(&o)
		if _, err := Open(o); rowraft.CodeOf(err) != rowraft.CodeIdentity {
			t.Errorf("Open as node %s of cluster %s: %v, want CodeIdentity", o.Node, o.Cluster, err)
		}
		o.Listener.Close()
	}
	c.open(n)
	_, err := n.store.StartGroup(GroupConfig{ID: "shard-0", Replica: "another", Machine: &listMachine{}})
	if rowraft.CodeOf(err) != rowraft.CodeIdentity {
		t.Errorf("StartGroup as another replica: %v, want CodeIdentity", err)
	}
	if err := n.store.RemoveReplica("shard-0", replicaOf(n.id)); err != nil {
		t.Fatal(err)
	}
	_, err = n.store.StartGroup(GroupConfig{ID: "shard-0", Replica: replicaOf(n.id), Machine: &listMachine{}})
	if rowraft.CodeOf(err) != rowraft.CodeIdentity {
		t.Errorf("StartGroup as a removed replica: %v, want CodeIdentity", err)
	}
	if _, err = n.store.StartGroup(GroupConfig{ID: "shard-0", Replica: "new", Machine: &listMachine{}}); err != nil {
		t.Errorf("StartGroup as a new replica: %v", err)
	}
	// A replica that never ran here can be removed too, and then cannot start. The running one is not affected.
	for range 2 {
		if err := n.store.RemoveReplica("shard-0", "never-here"); err != nil {
			t.Fatal(err)
		}
	}
	if g := n.store.Group("shard-0"); g == nil || g.Status().Replica != "new" || g.Status().Role == RoleStopped {
		t.Error("the replica that runs was touched")
	}
	if err := n.store.RemoveReplica("shard-0", "new"); err != nil {
		t.Fatal(err)
	}
	c.stop(n)
	c.open(n)
	for _, r := range []rowraft.ReplicaID{replicaOf(n.id), "never-here", "new"} {
		if _, err := n.store.StartGroup(GroupConfig{ID: "shard-0", Replica: r, Machine: &listMachine{},
			Bootstrap: []Member{{r, n.id}}}); rowraft.CodeOf(err) != rowraft.CodeIdentity {
			t.Errorf("StartGroup as %s, which was removed: %v, want CodeIdentity", r, err)
		}
	}
	if _, err := os.Stat(filepath.Join(n.dir, "raft", "groups", "shard-0")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data of the removed replica: %v, want none", err)
	}
}

// smallDisk has free bytes that the test sets.
type smallDisk struct {
	vfs.FS
	free *atomic.Int64
}

func (d smallDisk) Free(string) (int64, error) { return d.free.Load(), nil }

func TestFullDiskRefusesProposals(t *testing.T) {
	var free atomic.Int64
	free.Store(1 << 30)
	c := startedCluster(t, 1, func(o *Options) {
		o.DiskReserveBytes = 100 << 20
		o.FS = smallDisk{vfs.OS, &free}
		o.hooks.tick = 5 * time.Millisecond
	})
	c.propose("before")
	g := c.nodes[0].group
	free.Store(99 << 20)
	var err error
	testutil.Eventually(t, "a proposal is refused", func() bool {
		_, _, err = g.Propose([]byte("x")).Wait(testutil.Context(t))
		return err != nil
	})
	var over *rowraft.OverloadedError
	if !errors.As(err, &over) || !strings.Contains(err.Error(), c.nodes[0].dir) {
		t.Errorf("refused with %v, want OverloadedError naming %s", err, c.nodes[0].dir)
	}
	free.Store(1 << 30)
	c.propose("after")
}

// blockedCluster starts a cluster of one node. Its machine applies nothing until block is closed.
func blockedCluster(t *testing.T, tune func(*Options)) (c *testCluster, n *testNode, block chan struct{}) {
	t.Helper()
	block = make(chan struct{})
	c = newTestCluster(t, 1, tune)
	n = c.nodes[0]
	c.open(n)
	n.machine.beforeApply = func(rowraft.Index, []byte) any { <-block; return nil }
	c.startGroup(n)
	c.leader()
	return c, n, block
}

func TestPendingBytesAreBounded(t *testing.T) {
	_, n, block := blockedCluster(t, func(o *Options) {
		o.MaxEntryBytes = 1000
		o.MaxPendingBytes = 3000
	})
	var futures []*Future
	for range 3 {
		futures = append(futures, n.group.Propose(make([]byte, 1000)))
	}
	_, _, err := n.group.Propose([]byte{1}).Wait(testutil.Context(t))
	if rowraft.CodeOf(err) != rowraft.CodeOverloaded {
		t.Errorf("fourth proposal: %v, want CodeOverloaded", err)
	}
	for _, size := range []int{0, 1001} {
		if _, _, err := n.group.Propose(make([]byte, size)).Wait(testutil.Context(t)); rowraft.CodeOf(
			err) != rowraft.CodeInvalidArgument {
			t.Errorf("proposal of %d bytes: %v, want CodeInvalidArgument", size, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := futures[0].Wait(ctx); rowraft.CodeOf(err) != rowraft.CodeDeadline {
		t.Errorf("Wait with an ended context: %v, want CodeDeadline", err)
	}
	close(block)
	for _, f := range futures {
		if _, _, err := f.Wait(testutil.Context(t)); err != nil {
			t.Error(err)
		}
	}
	if s := n.group.Status(); s.PendingBytes != 0 {
		t.Errorf("%d bytes still count as pending", s.PendingBytes)
	}
}

// TestCloseRefusesWhatRaftDoesNotHave: proposals that wait for the dispatcher have no effect, and their callers learn
// that at once, even if the machine hangs.
func TestCloseRefusesWhatRaftDoesNotHave(t *testing.T) {
	c, n, block := blockedCluster(t, nil)
	var futures []*Future
	for range 4 * maxInflightEntries {
		futures = append(futures, n.group.Propose([]byte{1}))
	}
	run := n.group.run.Load()
	testutil.Eventually(t, "the dispatcher waits for results", func() bool {
		return len(run.inflight) == maxInflightEntries
	})
	closed := make(chan struct{})
	go func() {
		c.stop(n)
		close(closed)
	}()
	for i := range 2 * maxInflightEntries { // the last ones
		_, _, err := futures[len(futures)-1-i].Wait(testutil.Context(t))
		testutil.WantCode(t, err, rowraft.CodeClosing)
	}
	select {
	case <-closed:
		t.Error("the group has ended before its machine")
	default:
	}
	close(block)
	<-closed
}

// A follower that was down for so long that raft backs off by seconds gets entries as soon as it answers heartbeats.
func TestReturningFollowerCatchesUpAtOnce(t *testing.T) {
	t.Parallel()
	c := startedCluster(t, 3, func(o *Options) { o.WedgeTimeout = time.Minute }) // otherwise it restarts the group
	for try := 0; ; try++ {
		c.propose("before")
		f := c.followers()[0]
		c.stop(f)
		for i := range 10 {
			c.propose(fmt.Sprint(i))
		}
		// Raft's pauses double from 10 ms: the pause that begins after 5.1 s lasts 5.1 s.
		//tidy:allow sleep raft's own pause is what this waits for, and nothing shows it
		time.Sleep(5400 * time.Millisecond)
		last := c.propose("last")
		c.start(f)
		begin := time.Now()
		c.converged(last)
		took := time.Since(begin)
		if took <= 4*time.Second {
			break
		}
		t.Logf("the follower caught up after %v", took)
		if try == 4 { // on an idle machine the pause would be as long
			t.Fatal("it never catches up at once")
		}
	}
	for _, n := range c.nodes {
		if r := n.group.Status().Restarts; r != 0 {
			t.Errorf("node %s restarted its group %d times", n.id, r)
		}
	}
}

// Other versions do not build together, or lack fixes.
func TestVersionsThatBuildTogether(t *testing.T) {
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"github.com/hashicorp/raft v1.7.3", "github.com/hashicorp/raft-boltdb/v2 v2.3.1",
		"go.etcd.io/bbolt v1.5.0",
	} {
		if !strings.Contains(string(mod), "\t"+want+"\n") {
			t.Errorf("go.mod does not require %s", want)
		}
	}
}
