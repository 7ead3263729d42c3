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

// A log, or any file of it, does not open in the place of another owner's, whichever
// of the four names differs.
func TestLogOfAnotherOwnerIsRefused(t *testing.T) {
	others := []Owner{
		{"c-other", testOwner.Node, testOwner.Group, testOwner.Replica},
		{testOwner.Cluster, "n2", testOwner.Group, testOwner.Replica},
		{testOwner.Cluster, testOwner.Node, "shard-1", testOwner.Replica},
		{testOwner.Cluster, testOwner.Node, testOwner.Group, "r-other"},
	}
	files := map[string][]string{Row: {metaName, "0000000000000001.seg", "0000000000000002.seg"},
		Bolt: {metaName, boltName}}
	quiet := slog.New(slog.DiscardHandler)
	for _, backend := range Backends {
		t.Run(backend, func(t *testing.T) {
			dirOf := func(o Owner) string {
				dir := t.TempDir()
				l, err := Open(vfs.OS, backend, dir, o, MinSegmentBytes, quiet)
				if err != nil {
					t.Fatal(err)
				}
				for i := uint64(1); i <= 3; i++ {
					if err := l.StoreLogs([]*raft.Log{sealedEntry(t, i, 1, make([]byte, 40<<10))}); err != nil {
						t.Fatal(err)
					}
				}
				if err := errors.Join(l.SetUint64([]byte("CurrentTerm"), 7), l.Close()); err != nil {
					t.Fatal(err)
				}
				return dir
			}
			for _, other := range others {
				_, err := Open(vfs.OS, backend, dirOf(other), testOwner, MinSegmentBytes, quiet)
				testutil.WantCode(t, err, rowraft.CodeIdentity, other.String(), testOwner.String())
				for _, name := range files[backend] {
					dir, from := dirOf(testOwner), dirOf(other)
					if err := os.Rename(filepath.Join(from, name), filepath.Join(dir, name)); err != nil {
						t.Fatal(err)
					}
					_, err := Open(vfs.OS, backend, dir, testOwner, MinSegmentBytes, quiet)
					testutil.WantCode(t, err, rowraft.CodeIdentity, other.String(), testOwner.String(), name)
					if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
						t.Errorf("the file of the other is gone: %v", err)
					}
				}
			}
		})
	}
}

// A batch names its owner, too: one segment may hold the batches of several.
func TestABatchOfAnotherOwnerIsRefused(t *testing.T) {
	disk, _ := smallRowLog(t)
	l := openTestRowLog(t, disk)
	l.tag++
	if err := errors.Join(l.StoreLogs([]*raft.Log{sealedEntry(t, 25, 1, nil)}), l.Close()); err != nil {
		t.Fatal(err)
	}
	_, err := openRowLog(disk, "/log", testOwner, 16<<10, slog.New(slog.DiscardHandler))
	testutil.WantCode(t, err, rowraft.CodeIdentity, testOwner.String())
}
