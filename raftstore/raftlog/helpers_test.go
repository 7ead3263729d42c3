package raftlog

import (
	"bytes"
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

func openTestRowLog(t testing.TB, disk vfs.FS) *rowLog {
	t.Helper()
	l, err := openRowLog(disk, "/log", testOwner, 16<<10, slog.New(slog.DiscardHandler))
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
	if err := vfs.MkdirAll(disk, "/log"); err != nil {
		t.Fatal(err)
	}
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
	if err := l.DeleteRange(1, 12); err != nil {
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
