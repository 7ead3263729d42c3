package raftstore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/marks"
	"github.com/rowraft/rowraft/raftstore/raftlog"
)

// diskCluster is a testCluster of three on simulated disks, whose content can be saved and restored.
type diskCluster struct {
	*testCluster
	disks map[rowraft.NodeID]*vfs.Mem
}

func newDiskCluster(t *testing.T) *diskCluster {
	c := &diskCluster{disks: map[rowraft.NodeID]*vfs.Mem{}}
	c.testCluster = newTestCluster(t, 3, func(o *Options) {
		o.FS, o.Dir, o.SegmentSizeBytes = c.disks[o.Node], "/raft", raftlog.MinSegmentBytes
	})
	for _, n := range c.nodes {
		c.disks[n.id] = vfs.NewMem()
		c.start(n)
	}
	return c
}

// copyDisk returns the disk of n, which does not run, as it is. n continues with another copy.
func (c *diskCluster) copyDisk(n *testNode) *vfs.Mem {
	kept := c.disks[n.id]
	c.disks[n.id] = kept.Kill()
	return kept
}

// rollBack replaces the disk of n, which does not run, by a copy.
func (c *diskCluster) rollBack(n *testNode, kept *vfs.Mem) { c.disks[n.id] = kept.Kill() }

// rollBackGroup restores the files of the group, the log, which has no other group, and the file of marks.
func (c *diskCluster) rollBackGroup(n *testNode, kept *vfs.Mem) {
	c.t.Helper()
	old, now := kept.Kill(), c.disks[n.id].Kill()
	for _, dir := range []string{"/raft/groups/shard-0", "/raft/log"} {
		if err := errors.Join(vfs.RemoveAll(now, dir), copyTree(now, old, dir)); err != nil {
			c.t.Fatal(err)
		}
	}
	raw, err := vfs.ReadFile(old, "/raft/"+marks.FileName)
	if err == nil {
		err = vfs.WriteFile(now, "/raft/"+marks.FileName, raw)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.disks[n.id] = now
}

// A server whose other files are current detects without other servers that the files of a group are older.
func TestARolledBackGroupIsFoundAlone(t *testing.T) {
	c := newDiskCluster(t)
	c.converged(c.propose("before"))
	r := c.followers()[0]
	c.stop(r)
	kept := c.copyDisk(r)
	c.start(r)
	last := c.propose("after")
	c.converged(last)
	c.told(r, last)
	testutil.Eventually(t, "it knows what it confirmed", func() bool {
		return r.store.marks.Of("shard-0", replicaOf(r.id)).Index >= uint64(last)
	})
	for _, n := range c.nodes {
		c.stop(n)
	}
	raw, err := vfs.ReadFile(c.disks[r.id], "/raft/"+marks.FileName)
	if err != nil {
		t.Fatal(err)
	}
	c.rollBackGroup(r, kept)
	if err := vfs.WriteFile(c.disks[r.id], "/raft/"+marks.FileName, raw); err != nil {
		t.Fatal(err)
	}
	c.start(r)
	c.refused(r)
}

func copyTree(to, from vfs.FS, dir string) error {
	if err := vfs.MkdirAll(to, dir); err != nil {
		return err
	}
	entries, err := from.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if e.IsDir() {
			if err := copyTree(to, from, name); err != nil {
				return err
			}
			continue
		}
		b, err := vfs.ReadFile(from, name)
		if err == nil {
			err = vfs.WriteFile(to, name, b)
		}
		if err != nil {
			return err
		}
	}
	return to.SyncDir(dir)
}

// told waits until every other running node remembers that n confirmed index.
func (c *diskCluster) told(n *testNode, index rowraft.Index) {
	c.t.Helper()
	for _, other := range c.nodes {
		if other != n && other.store != nil {
			testutil.Eventually(c.t, fmt.Sprintf("node %s knows what node %s confirmed", other.id, n.id), func() bool {
				return other.store.marks.Of("shard-0", replicaOf(n.id)).Index >= uint64(index)
			})
		}
	}
}

// refused waits until n has stopped because of its disk, and returns the reason.
func (c *diskCluster) refused(n *testNode) string {
	c.t.Helper()
	testutil.Eventually(c.t, fmt.Sprintf("node %s finds that its disk was rolled back", n.id), func() bool {
		return n.group.Err() != nil
	})
	err := n.group.Err()
	if rowraft.CodeOf(err) != rowraft.CodeFenced || !strings.Contains(err.Error(), RolledBack) {
		c.t.Fatalf("node %s stopped with %v", n.id, err)
	}
	return err.Error()
}

// refusedAfter returns a follower that confirmed an entry, lost it from its disk by back, and was refused, and the
// reason.
func (c *diskCluster) refusedAfter(back func(*diskCluster, *testNode, *vfs.Mem)) (r *testNode, why string) {
	c.t.Helper()
	c.converged(c.propose("before"))
	r = c.followers()[0]
	c.stop(r)
	kept := c.copyDisk(r)
	c.start(r)
	last := c.propose("after")
	c.converged(last)
	c.told(r, last)
	c.stop(r)
	//tidy:allow sleep for half a second after its end, other nodes count a process as running
	time.Sleep(time.Second)
	back(c, r, kept)
	c.start(r)
	return r, c.refused(r)
}

// others are all nodes but n.
func (c *diskCluster) others(n *testNode) (a, b *testNode) {
	var out []*testNode
	for _, o := range c.nodes {
		if o != n {
			out = append(out, o)
		}
	}
	return out[0], out[1]
}

// A replica that returns with an older disk is refused, no matter how much of the disk is old. The other replicas
// continue with all acknowledged entries.
func TestARolledBackReplicaIsRefused(t *testing.T) {
	for _, tc := range []struct {
		name string
		back func(*diskCluster, *testNode, *vfs.Mem)
		why  string
	}{
		{"the whole directory", (*diskCluster).rollBack, "another copy"},
		{"the files of the group", (*diskCluster).rollBackGroup, "its log ends at entry"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var c *diskCluster
			var r *testNode
			why := ""
			// A peer that knows the mark of r from the leader, and had no connection with its last process, finds only
			// that the log is too short. Mostly another peer answers first.
			for tries := 0; tries < 5 && !strings.Contains(why, tc.why); tries++ {
				c = newDiskCluster(t)
				r, why = c.refusedAfter(tc.back)
			}
			if !strings.Contains(why, tc.why) {
				t.Errorf("refused because of %q in each of 5 clusters, want %q once", why, tc.why)
			}
			for range 3 {
				c.propose("the others continue")
			}
			if l := c.leader(); l == r {
				t.Error("it leads")
			}
			c.stop(r)
			c.open(r) // another start changes nothing
			cfg := GroupConfig{ID: "shard-0", Replica: replicaOf(r.id), Machine: r.machine, Bootstrap: c.members()}
			g, err := r.store.StartGroup(cfg)
			if r.group = g; err == nil {
				c.refused(r)
			} else if rowraft.CodeOf(err) != rowraft.CodeFenced {
				t.Errorf("started again: %v", err)
			}
		})
	}
}

// The worst case: the replica with the newest log is down, and the rolled-back one and a lagging one are up. They must
// not elect a leader without acknowledged entries. All were down in between, so only the files of marks have the
// evidence.
func TestARolledBackReplicaElectsNoLeader(t *testing.T) {
	c := newDiskCluster(t)
	c.converged(c.propose("before"))
	l := c.leader()
	r, f := c.others(l)
	c.stop(r)
	kept := c.copyDisk(r)
	c.start(r)
	first := c.propose("seen by all")
	c.converged(first)
	c.told(r, first)
	c.stop(f)
	c.propose("acknowledged without the one that lags")
	for _, n := range []*testNode{l, r} {
		c.stop(n)
	}
	c.rollBackGroup(r, kept)
	c.start(r)
	c.start(f)
	c.refused(r)
	if n, _ := f.machine.state(); n > 2 {
		t.Errorf("the replica that lags applied %d entries alone", n)
	}
	if _, _, me := f.group.Leader(); me {
		t.Error("the replica that lags leads")
	}
	c.start(l)
	last := c.propose("the two honest ones go on")
	for _, n := range []*testNode{l, f} {
		if err := n.group.WaitApplied(testutil.Context(t), last); err != nil {
			t.Fatal(err)
		}
		list := strings.Join(n.machine.list(), "; ")
		if !strings.Contains(list, "acknowledged without the one that lags") {
			t.Errorf("node %s lost an acknowledged entry: %s", n.id, list)
		}
	}
}

// A vote is remembered like an entry: a replica that voted in a term does not return to an earlier term.
func TestAForgottenVoteIsRefused(t *testing.T) {
	c := newDiskCluster(t)
	c.converged(c.propose("x"))
	r := c.followers()[0]
	l := c.leader()
	if m := l.store.marks.Of("shard-0", replicaOf(l.id)); m.Term == 0 {
		t.Errorf("the leader does not remember its own vote: %+v", m)
	}
	_, term, _ := l.group.Leader()
	voted := false
	for _, n := range c.nodes {
		voted = voted || n != l && l.store.marks.Of("shard-0", replicaOf(n.id)).Term == uint64(term)
	}
	if !voted {
		t.Errorf("the leader of term %d remembers no vote in it", term)
	}
	c.stop(r)
	l.store.marks.Raise("shard-0", replicaOf(r.id), marks.Mark{Term: uint64(term) + 100})
	c.start(r)
	if why := c.refused(r); !strings.Contains(why, "voted in term") {
		t.Error(why)
	}
}

// Entries that were not confirmed, or not committed, may be lost.
func TestAnUnconfirmedSuffixMayGo(t *testing.T) {
	c := newDiskCluster(t)
	c.converged(c.propose("x"))
	l := c.leader()
	a, b := c.others(l)
	c.stop(a)
	c.stop(b)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	for i := range 3 {
		if _, _, err := l.group.Propose([]byte(fmt.Sprint("alone ", i))).Wait(ctx); err == nil {
			t.Fatal("a leader without followers committed an entry")
		}
	}
	long := l.group.Status().LastIndex
	c.stop(l)
	c.start(a)
	c.start(b)
	c.propose("y")
	c.start(l)
	c.converged(c.propose("z"))
	for _, n := range c.nodes {
		if err := n.group.Err(); err != nil {
			t.Errorf("node %s: %v", n.id, err)
		}
	}
	if list := l.machine.list(); strings.Contains(strings.Join(list, "; "), "alone") {
		t.Skipf("the entries of the old leader, up to %d, were committed after all: %q", long, list)
	}
	c.stop(l)
	c.start(l)
	c.converged(c.propose("and after another start"))
}

// Lost marks block nothing, and neither does a peer that is down.
func TestMissingMarksBlockNothing(t *testing.T) {
	c := newDiskCluster(t)
	c.converged(c.propose("x"))
	for _, n := range c.nodes {
		c.stop(n)
		if err := c.disks[n.id].Remove("/raft/" + marks.FileName); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range c.nodes[:2] {
		c.start(n)
	}
	c.converged(c.propose("two of three, without marks"))
	c.start(c.nodes[2])
	c.converged(c.propose("all"))
}

// A refused replica is removed and replaced under a new ID, which has no mark, in the same process. If the whole
// directory is a copy, its starts are older too.
func TestARefusedReplicaIsReplaced(t *testing.T) {
	for _, tc := range []struct {
		name string
		back func(*diskCluster, *testNode, *vfs.Mem)
	}{
		{"the whole directory", (*diskCluster).rollBack},
		{"the files of the group", (*diskCluster).rollBackGroup},
	} {
		t.Run(tc.name, func(t *testing.T) { replaceRefused(t, tc.back) })
	}
}

func replaceRefused(t *testing.T, back func(*diskCluster, *testNode, *vfs.Mem)) {
	c := newDiskCluster(t)
	r, _ := c.refusedAfter(back)
	change := func(what string, f func(*Group, Membership) error) {
		t.Helper()
		testutil.Eventually(t, what, func() bool {
			g := c.leader().group
			now, err := g.Members()
			return err == nil && f(g, now) == nil
		})
	}
	change("it is removed", func(g *Group, m Membership) error {
		_, err := g.Remove(testutil.Context(t), replicaOf(r.id), m.Index)
		return err
	})
	if err := r.store.RemoveReplica("shard-0", replicaOf(r.id)); err != nil {
		t.Fatal(err)
	}
	r.machine = &listMachine{}
	var err error
	if r.group, err = r.store.StartGroup(GroupConfig{ID: "shard-0", Replica: "new", Machine: r.machine}); err != nil {
		t.Fatal(err)
	}
	change("the new one learns", func(g *Group, m Membership) error {
		_, err := g.AddLearner(testutil.Context(t), Member{"new", r.id}, m.Index)
		return err
	})
	change("the new one votes", func(g *Group, m Membership) error {
		_, err := g.Promote(testutil.Context(t), "new", m.Index)
		return err
	})
	c.converged(c.propose("z"))
	testutil.Eventually(t, "the old mark is dropped", func() bool {
		return c.leader().store.marks.Of("shard-0", replicaOf(r.id)) == marks.Mark{}
	})
}

// With two processes on copies of one directory the second one ends, and the first one continues.
func TestTwoProcessesOfOneNode(t *testing.T) {
	c := newDiskCluster(t)
	c.converged(c.propose("x"))
	r := c.followers()[0]
	c.stop(r)
	kept := c.copyDisk(r)
	c.start(r)
	c.converged(c.propose("y"))
	fatal := make(chan error, 16)
	o := testOptions(t, "", r.id, fatal)
	o.FS, o.Dir, o.SegmentSizeBytes, o.Resolve = kept.Kill(), "/raft", raftlog.MinSegmentBytes, c.resolve
	twin, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer twin.Close()
	if _, err := twin.StartGroup(GroupConfig{ID: "shard-0", Replica: replicaOf(r.id), Machine: &listMachine{},
		Bootstrap: c.members()}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-fatal: // the kind of error depends on the peer that it connected to first
		if code := rowraft.CodeOf(err); code != rowraft.CodeIdentity && code != rowraft.CodeFenced {
			t.Errorf("the second process ends with %v", err)
		}
	case <-testutil.Context(t).Done():
		t.Fatal("the second process continues")
	}
	c.converged(c.propose("z"))
	if err := r.group.Err(); err != nil {
		t.Errorf("the first process: %v", err)
	}
}

// A replica does not delete entries that it knows to be committed, even if a leader requests it.
func TestCommittedEntriesAreNotReplaced(t *testing.T) {
	c := newDiskCluster(t)
	c.converged(c.propose("x"))
	f := c.followers()[0]
	last, err := f.group.inner.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.group.glog.DeleteRange(last, last) // as raft does for the entries of another leader
	}()
	<-done
	if err := f.group.Err(); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Errorf("dropped committed entry %d: %v", last, err)
	}
	if again, err := f.group.inner.LastIndex(); err != nil || again != last {
		t.Errorf("the log ends at %d, %v; it ended at %d", again, err, last)
	}
}
