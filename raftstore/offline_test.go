package raftstore

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/offline"
	"github.com/rowraft/rowraft/raftstore/raftlog"
)

// stoppedCluster runs three nodes until each has a snapshot, and stops them. marks has the entries by index.
func stoppedCluster(t *testing.T, backend string) (c *testCluster, marks map[rowraft.Index]string) {
	c = startedCluster(t, 3, func(o *Options) {
		o.Backend = backend
		o.SnapshotEveryBytes = 16 << 10
		o.TrailingLogBytes = 8 << 10
		o.hooks.tick = 10 * time.Millisecond
	})
	marks = map[rowraft.Index]string{}
	pad := strings.Repeat("x", 2<<10)
	last := rowraft.Index(0)
	for i := range 24 {
		s := fmt.Sprint(i, pad)
		last = c.propose(s)
		marks[last] = s
	}
	c.converged(last)
	for _, n := range c.nodes {
		testutil.Eventually(t, "a snapshot is kept, and the log is cut behind it", func() bool {
			list, err := n.group.snaps.List()
			if err != nil || len(list) == 0 {
				return false
			}
			first, err := n.group.inner.FirstIndex()
			return err == nil && first != 1
		})
	}
	if _, err := offline.Open(vfs.OS, filepath.Join(c.nodes[0].dir, "raft")); rowraft.CodeOf(
		err) != rowraft.CodeIdentity || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("a running store is opened: %v", err)
	}
	for _, n := range c.nodes {
		c.stop(n)
	}
	return c, marks
}

func TestAStoppedStoreIsReadAndNotChanged(t *testing.T) {
	for _, backend := range raftlog.Backends {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			c, marks := stoppedCluster(t, backend)
			seen := map[rowraft.Index]offline.Entry{}
			for _, n := range c.nodes {
				dir := filepath.Join(n.dir, "raft")
				before := contentOf(t, dir)
				o, err := offline.Open(vfs.OS, dir)
				if err != nil {
					t.Fatal(err)
				}
				if o.Cluster() != testCluID || o.Node() != n.id || fmt.Sprint(o.GroupIDs()) != "[shard-0]" {
					t.Errorf("store of cluster %s, node %s, groups %v", o.Cluster(), o.Node(), o.GroupIDs())
				}
				if _, err := o.Group("shard-7"); rowraft.CodeOf(err) != rowraft.CodeNotFound {
					t.Errorf("a group that is not there: %v", err)
				}
				g, err := o.Group("shard-0")
				if err != nil {
					t.Fatal(err)
				}
				if g.Replica != replicaOf(n.id) || g.Backend != backend || len(g.Voters) != 3 || g.Term == 0 {
					t.Errorf("group %+v", g)
				}
				checkEntries(t, g, marks, seen)
				checkState(t, g, marks)
				opts := testOptions(t, n.dir, n.id, nil)
				opts.Listener.Close()
				if _, err := Open(opts); rowraft.CodeOf(err) != rowraft.CodeIdentity {
					t.Errorf("a server starts on a directory that is being read: %v", err)
				}
				if err := o.Close(); err != nil {
					t.Error(err)
				}
				if after := contentOf(t, dir); after != before {
					t.Errorf("reading changed the directory:\n%s\nwas\n%s", after, before)
				}
			}
		})
	}
}

// checkEntries fails unless the commands of a log are marks, and its entries are equal to those seen in other logs.
func checkEntries(t *testing.T, g *offline.Group, marks map[rowraft.Index]string,
	seen map[rowraft.Index]offline.Entry) {
	t.Helper()
	known, found := map[string]bool{}, map[string]bool{}
	newest := rowraft.Index(0)
	for i, s := range marks {
		known[s], newest = true, max(newest, i)
	}
	for i := max(g.First, 1); i <= g.Last; i++ {
		e, err := g.Entry(i)
		if err != nil {
			t.Fatal(err)
		}
		// An entry may be in the log twice: propose tries again after a change of the leader.
		if want, ok := marks[i]; ok && (e.Kind != offline.KindCommand || string(e.Data) != want) ||
			e.Kind == offline.KindCommand && !known[string(e.Data)] {
			t.Errorf("entry %d of kind %s: %.10q, want %.10q", i, e.Kind, e.Data, want)
		}
		if e.Kind == offline.KindCommand {
			found[string(e.Data)] = true
		}
		if other, ok := seen[i]; ok && !other.Equal(e) {
			t.Errorf("entry %d is %+v in another log, %+v here", i, other, e)
		}
		seen[i] = e
	}
	// The log of a replica that got a snapshot of all entries has none of them.
	if len(found) == len(marks) || len(found) == 0 && g.Snapshots[0].Index < newest {
		t.Errorf("%d of %d commands are in the log, want some: a snapshot has the others", len(found), len(marks))
	}
	if _, err := g.Entry(g.Last + 1); err == nil {
		t.Error("an entry beyond the end is read")
	}
}

// checkState fails unless the newest snapshot is what the machine wrote.
func checkState(t *testing.T, g *offline.Group, marks map[rowraft.Index]string) {
	t.Helper()
	newest := g.Snapshots[0]
	applied, state, err := g.State(newest.ID)
	if err != nil {
		t.Fatal(err)
	}
	m := &listMachine{}
	if err := m.Restore(bytes.NewReader(state)); err != nil {
		t.Fatal(err)
	}
	want := 0
	for i := range marks {
		if i <= newest.Index {
			want++
		}
	}
	if applied > newest.Index || m.AppliedIndex() != applied || len(m.list()) < want {
		t.Errorf("snapshot of %d holds %d entries up to %d, want %d", newest.Index, len(m.list()), m.AppliedIndex(), want)
	}
}

// contentOf lists every file of a directory with its mode, time and checksum.
func contentOf(t *testing.T, dir string) string {
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content := []byte{}
		if !d.IsDir() {
			if content, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		fmt.Fprintf(&b, "%s %v %v %x\n", path, info.Mode(), info.ModTime(), sha256.Sum256(content))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestDamageOfAStoppedStoreIsReported flips a byte of an entry and one of a snapshot.
func TestDamageOfAStoppedStoreIsReported(t *testing.T) {
	c, _ := stoppedCluster(t, raftlog.Bolt)
	var dir, last string
	copies := 0
	for _, n := range c.nodes { // one whose log has a command
		dir = filepath.Join(n.dir, "raft")
		if last, copies = lastCommand(t, dir); copies > 0 {
			break
		}
	}
	group := filepath.Join(dir, "groups", "shard-0")
	flipIn(t, filepath.Join(group, "log", "raft.db"), last)
	snaps, err := filepath.Glob(filepath.Join(group, "snapshots", "*", "data"))
	if err != nil || len(snaps) == 0 {
		t.Fatalf("snapshots %v, %v", snaps, err)
	}
	flipIn(t, snaps[len(snaps)-1], "xxxxxxxx")

	o, g := openStopped(t, dir)
	defer o.Close()
	bad := 0
	for i := g.First; i <= g.Last; i++ {
		if _, err := g.Entry(i); rowraft.CodeOf(err) == rowraft.CodeCorrupt {
			bad++
		}
	}
	if bad != copies || copies == 0 {
		t.Errorf("%d entries are bad, want the %d with these bytes", bad, copies)
	}
	if _, _, err := g.State(g.Snapshots[0].ID); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Errorf("a damaged snapshot is read: %v", err)
	}
	if _, err := offline.Open(vfs.OS, t.TempDir()); rowraft.CodeOf(err) != rowraft.CodeNotFound {
		t.Errorf("a directory without a store: %v", err)
	}
}

// openStopped opens a stopped store, which the caller closes, and its group.
func openStopped(t *testing.T, dir string) (*offline.Store, *offline.Group) {
	t.Helper()
	o, err := offline.Open(vfs.OS, dir)
	if err != nil {
		t.Fatal(err)
	}
	g, err := o.Group("shard-0")
	if err != nil {
		o.Close()
		t.Fatal(err)
	}
	return o, g
}

// lastCommand returns the newest command in the log of a stopped store, and how often it is there: propose tries again
// after a change of the leader.
func lastCommand(t *testing.T, dir string) (data string, copies int) {
	o, g := openStopped(t, dir)
	defer o.Close()
	for i := g.Last; i >= g.First && i > 0; i-- {
		e, err := g.Entry(i)
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == offline.KindCommand && (copies == 0 || string(e.Data) == data) {
			data = string(e.Data)
			copies++
		}
	}
	return data, copies
}

// flipIn changes a byte of each occurrence of text in the file.
func flipIn(t *testing.T, path, text string) {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(b, []byte(text))
	if at < 0 {
		t.Fatalf("%s does not hold %.10q", path, text)
	}
	for ; at >= 0; at = bytes.Index(b, []byte(text)) {
		b[at+len(text)/2] ^= 1
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// The logs of a stopped cluster are good and agree.
func TestLogsOfAStoppedClusterMatch(t *testing.T) {
	c := startedCluster(t, 3, nil)
	for i := range 10 {
		c.propose(fmt.Sprint(i))
	}
	c.converged(c.propose("last"))
	for _, n := range c.nodes {
		c.stop(n)
	}
	oa, a := openStopped(t, filepath.Join(c.nodes[0].dir, "raft"))
	defer oa.Close()
	ob, b := openStopped(t, filepath.Join(c.nodes[1].dir, "raft"))
	defer ob.Close()
	for _, g := range []*offline.Group{a, b} {
		for _, err := range g.Verify() {
			t.Error(err)
		}
	}
	if agree, err := offline.Match(a, b); err != nil || agree != min(a.Last, b.Last) {
		t.Errorf("good logs of %d and %d entries agree to %d, %v", a.Last, b.Last, agree, err)
	}
}
