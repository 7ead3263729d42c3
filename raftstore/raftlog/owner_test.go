package raftlog

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
)

// testOwner is the owner of the logs in testdata.
var testOwner = Owner{"c-test", "n1", "shard-0", "r-shard-0"}

// testDir is a directory of logs: dir/log has the shared log, dir/group META or the file of bolt.
type testDir string

func (d testDir) open(backend string, o Owner) (Log, *Shared, error) {
	quiet := slog.New(slog.DiscardHandler)
	shared, err := OpenShared(vfs.OS, filepath.Join(string(d), "log"), o.Cluster, o.Node, MinSegmentBytes, quiet)
	if err != nil {
		return nil, nil, err
	}
	group := filepath.Join(string(d), "group")
	if err := vfs.MkdirAll(vfs.OS, group); err != nil {
		return nil, shared, err
	}
	l, err := Open(vfs.OS, backend, group, o, shared, quiet)
	return l, shared, err
}

// A log, or any file of it, does not open in the place of another owner's, whichever
// of the four names differs.
func TestLogOfAnotherOwnerIsRefused(t *testing.T) {
	otherServer, otherCluster := testOwner, testOwner
	otherServer.Node, otherCluster.Cluster = "n2", "c-other"
	otherGroup, otherReplica := testOwner, testOwner
	otherGroup.Group, otherReplica.Replica = "shard-1", "r-other"
	segments := []string{"log/META", "log/0000000000000001.seg", "log/0000000000000002.seg"}
	for _, tc := range []struct {
		backend string
		others  []Owner
		files   []string
	}{
		{Row, []Owner{otherServer, otherCluster}, append(segments, "group/META")},
		{Row, []Owner{otherGroup, otherReplica}, []string{"group/META"}},
		{Bolt, []Owner{otherServer, otherCluster, otherGroup, otherReplica}, []string{"group/META", "group/" + boltName}},
	} {
		dirOf := func(o Owner) testDir {
			dir := testDir(t.TempDir())
			l, shared, err := dir.open(tc.backend, o)
			if err != nil {
				t.Fatal(err)
			}
			for i := uint64(1); i <= 3; i++ {
				if err := l.StoreLogs([]*raft.Log{sealedEntry(t, i, 1, make([]byte, 40<<10))}); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(l.SetUint64([]byte("CurrentTerm"), 7), l.Close(), shared.Close()); err != nil {
				t.Fatal(err)
			}
			return dir
		}
		refused := func(dir testDir, words ...string) {
			t.Helper()
			_, shared, err := dir.open(tc.backend, testOwner)
			testutil.WantCode(t, err, rowraft.CodeIdentity, words...)
			if shared != nil {
				shared.Close()
			}
		}
		for _, other := range tc.others {
			refused(dirOf(other))
			for _, name := range tc.files {
				dir, from := dirOf(testOwner), dirOf(other)
				if err := os.Rename(filepath.Join(string(from), name), filepath.Join(string(dir), name)); err != nil {
					t.Fatal(err)
				}
				refused(dir, filepath.Base(name), string(other.Node), string(other.Cluster))
				if _, err := os.Stat(filepath.Join(string(dir), name)); err != nil {
					t.Errorf("the file of the other is gone: %v", err)
				}
			}
		}
	}
}

// A group whose log is not in the shared log does not open, and a group that is added twice begins empty.
func TestAGroupWithoutItsLogIsRefused(t *testing.T) {
	dir := testDir(t.TempDir())
	open := func() (Log, *Shared, error) { return dir.open(Row, testOwner) }
	l, shared, err := open()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.StoreLogs([]*raft.Log{sealedEntry(t, 1, 1, nil)}), l.Close(), shared.Close()); err != nil {
		t.Fatal(err)
	}
	meta := filepath.Join(string(dir), "group", metaName)
	kept, err := os.ReadFile(meta)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(meta); err != nil {
		t.Fatal(err)
	}
	if l, shared, err = open(); err != nil { // as after a crash while it was created
		t.Fatal(err)
	}
	if last, _ := l.LastIndex(); last != 0 {
		t.Errorf("a new log ends at entry %d", last)
	}
	if err := errors.Join(l.Close(), shared.Close(), os.RemoveAll(filepath.Join(string(dir), "log")),
		os.WriteFile(meta, kept, 0o600)); err != nil {
		t.Fatal(err)
	}
	_, shared, err = open()
	testutil.WantCode(t, err, rowraft.CodeIdentity, "lost", testOwner.String())
	if err := errors.Join(shared.Close(), os.Remove(filepath.Join(string(dir), "log", metaName)),
		os.WriteFile(filepath.Join(string(dir), "log", segmentName(1, segmentExt)), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	_, _, err = open()
	testutil.WantCode(t, err, rowraft.CodeCorrupt, metaName)
}
