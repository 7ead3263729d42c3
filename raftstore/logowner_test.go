package raftstore

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// testOwner is the owner of the logs in testdata.
var testOwner = logOwner{"c-test", "n1", "shard-0", "r-shard-0"}

// wantOwners fails t unless err has CodeIdentity and names both owners.
func wantOwners(t *testing.T, err error, owners ...logOwner) {
	t.Helper()
	if rowraft.CodeOf(err) != rowraft.CodeIdentity {
		t.Errorf("%v, want CodeIdentity", err)
		return
	}
	for _, o := range owners {
		if !strings.Contains(err.Error(), o.String()) {
			t.Errorf("%v does not name %s", err, o)
		}
	}
}

// A log, or any file of it, does not open in the place of another owner's, whichever
// of the four names differs.
func TestLogOfAnotherOwnerIsRefused(t *testing.T) {
	others := []logOwner{
		{"c-other", testOwner.node, testOwner.group, testOwner.replica},
		{testOwner.cluster, "n2", testOwner.group, testOwner.replica},
		{testOwner.cluster, testOwner.node, "shard-1", testOwner.replica},
		{testOwner.cluster, testOwner.node, testOwner.group, "r-other"},
	}
	files := map[string][]string{BackendRow: {metaName, "0000000000000001.seg", "0000000000000002.seg"}, BackendBolt: {metaName, boltName}}
	quiet := slog.New(slog.DiscardHandler)
	for _, backend := range Backends {
		t.Run(backend, func(t *testing.T) {
			dirOf := func(o logOwner) string {
				dir := t.TempDir()
				l, err := openBackend(vfs.OS, backend, dir, o, minSegment, quiet)
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
				_, err := openBackend(vfs.OS, backend, dirOf(other), testOwner, minSegment, quiet)
				wantOwners(t, err, other, testOwner)
				for _, name := range files[backend] {
					dir, from := dirOf(testOwner), dirOf(other)
					if err := os.Rename(filepath.Join(from, name), filepath.Join(dir, name)); err != nil {
						t.Fatal(err)
					}
					_, err := openBackend(vfs.OS, backend, dir, testOwner, minSegment, quiet)
					wantOwners(t, err, other, testOwner)
					if err != nil && !strings.Contains(err.Error(), name) {
						t.Errorf("%v does not name %s", err, name)
					}
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
	wantOwners(t, err, testOwner)
}

// Two groups of a server whose logs or snapshots were exchanged do not start, and their
// data is as it was: exchanged back, they serve.
func TestGroupsWithExchangedLogsDoNotStart(t *testing.T) {
	for _, tc := range [][2]string{{BackendRow, "log"}, {BackendBolt, "log"}, {BackendRow, "snapshots"}} {
		backend, what := tc[0], tc[1]
		t.Run(backend+" "+what, func(t *testing.T) {
			c := startedCluster(t, 1, func(o *Options) { o.Backend = backend })
			n := c.nodes[0]
			other := GroupConfig{ID: "shard-1", Replica: "r-shard-1", Machine: &listMachine{}, Bootstrap: []Member{{"r-shard-1", n.id}}}
			second, err := n.store.StartGroup(other)
			if err != nil {
				t.Fatal(err)
			}
			last := c.propose("acknowledged")
			eventually(t, "the other group takes an entry", func() bool {
				_, _, err := second.Propose([]byte("x")).Wait(testContext(t))
				return err == nil
			})
			if err := errors.Join(n.group.Snapshot(), second.Snapshot()); err != nil {
				t.Fatal(err)
			}
			exchange := func() {
				t.Helper()
				groups := filepath.Join(n.dir, "raft", "groups")
				a, b, tmp := filepath.Join(groups, "shard-0", what), filepath.Join(groups, "shard-1", what), filepath.Join(n.dir, "aside")
				if err := errors.Join(os.Rename(a, tmp), os.Rename(b, a), os.Rename(tmp, b)); err != nil {
					t.Fatal(err)
				}
			}
			c.stop(n)
			exchange()
			owners := []logOwner{{testCluID, n.id, "shard-0", replicaOf(n.id)}, {testCluID, n.id, "shard-1", "r-shard-1"}}
			wantOwners(t, c.tryStart(n), owners...)
			_, err = n.store.StartGroup(other)
			wantOwners(t, err, owners...)
			c.stop(n)
			exchange()
			c.start(n)
			c.converged(max(last, c.propose("again")))
		})
	}
}
