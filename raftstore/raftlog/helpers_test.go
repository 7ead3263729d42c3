package raftlog

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/entry"
)

// transport.sealedEntry is an entry as it reaches a backend.
func sealedEntry(t testing.TB, index, term uint64, data []byte) *raft.Log {
	t.Helper()
	l := &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: data, Extensions: entry.Seal(data)}
	if err := entry.Complete(l); err != nil {
		t.Fatal(err)
	}
	return l
}

// testRowLog is the log of testOwner in a shared log that it owns.
type testRowLog struct{ *rowLog }

func (l testRowLog) Close() error { return errors.Join(l.rowLog.Close(), l.shared.Close()) }

// tryTestRowLog opens the shared log in /log, and in it the log of testOwner, whose META is in /group.
func tryTestRowLog(disk vfs.FS) (testRowLog, error) {
	quiet := slog.New(slog.DiscardHandler)
	if err := vfs.MkdirAll(disk, "/group"); err != nil {
		return testRowLog{}, err
	}
	shared, err := OpenShared(disk, "/log", testOwner.Cluster, testOwner.Node, MinSegmentBytes, quiet)
	if err != nil {
		return testRowLog{}, err
	}
	shared.size = 16 << 10
	l, err := shared.openGroup(disk, "/group", testOwner, quiet)
	if err != nil {
		return testRowLog{}, errors.Join(err, shared.Close())
	}
	return testRowLog{l}, nil
}

func openTestRowLog(t testing.TB, disk vfs.FS) testRowLog {
	t.Helper()
	l, err := tryTestRowLog(disk)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// smallRowLog returns a disk with a closed log of entries 1 … 24 in batches of one to
// three over several segments, the first of which are gone.
func smallRowLog(t testing.TB) (*vfs.Mem, map[uint64]*raft.Log) {
	t.Helper()
	disk := vfs.NewMem()
	l := openTestRowLog(t, disk)
	want := map[uint64]*raft.Log{}
	for next := uint64(1); next <= 24; {
		var logs []*raft.Log
		for range 1 + next%3 {
			e := sealedEntry(t, next, 1, bytes.Repeat([]byte{byte(next)}, int(next)*40))
			want[next], logs = e, append(logs, e)
			next++
		}
		if err := l.StoreLogs(logs); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(l.DeleteRange(1, 12), l.Reclaim()); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return disk, want
}

func segmentFiles(t testing.TB, disk vfs.FS) (names []string) {
	t.Helper()
	entries, err := disk.ReadDir("/log")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, ok := parseSegmentName(e.Name(), segmentExt); ok {
			names = append(names, "/log/"+e.Name())
		}
	}
	return names
}

func putFile(t testing.TB, disk vfs.FS, name string, data []byte) {
	t.Helper()
	if err := vfs.WriteFile(disk, name, data); err != nil {
		t.Fatal(err)
	}
}

func overwrite(t testing.TB, disk vfs.FS, name string, at int, b []byte) {
	t.Helper()
	f, err := disk.OpenFile(name, os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, int64(at)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// serverOwner is the owner of the shared log in testdata.
var serverOwner = Owner{Cluster: testOwner.Cluster, Node: testOwner.Node}

// putMetas makes the META of the shared log in /log and of the group in /group.
func putMetas(t testing.TB, disk vfs.FS) {
	t.Helper()
	for dir, owner := range map[string]Owner{"/log": serverOwner, "/group": testOwner} {
		if err := vfs.MkdirAll(disk, dir); err != nil {
			t.Fatal(err)
		}
		s := newMetaStore(disk, owner, slog.New(slog.DiscardHandler))
		if _, err := s.Load(dir); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
