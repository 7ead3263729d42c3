package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// TestAFlippedBitInAnyFileIsFound flips a bit in every file of a store with log and snapshots, at many places. The
// group then serves the acknowledged state, or its start fails with a code that names the reason. A bit may have no
// effect: padding, copies, a snapshot that the log covers.
//
// Damage to the last batches of the log looks like a power cut, which leaves the end of the log half written. They are
// dropped, and the other replicas have them. No earlier entry may be missing.
func TestAFlippedBitInAnyFileIsFound(t *testing.T) {
	const entries, inTail = 12, 2
	options := func(disk vfs.FS) Options {
		o := crashOptions(disk)
		o.TrailingLogBytes = 1
		return o
	}
	formed := vfs.NewMem()
	var want []string
	synctest.Test(t, func(*testing.T) { want = flipLife(t, formed, options, entries) })
	found, harmless, tail := 0, 0, 0
	for _, f := range filesOf(t, formed, "/node") {
		before := found
		for _, at := range placesIn(f.content) {
			disk := formed.Kill()
			flipAt(t, disk, f.name, at)
			var got []string
			var err error
			synctest.Test(t, func(*testing.T) { got, err = lookAtFlipped(disk, options) })
			what := fmt.Sprintf("%s, byte %d of %d", f.name, at, len(f.content))
			switch code := rowraft.CodeOf(err); {
			case err != nil && code != rowraft.CodeCorrupt && code != rowraft.CodeIdentity && code != rowraft.CodeVersionTooNew:
				t.Errorf("%s: %v has code %v", what, err, code)
			case err != nil:
				found++
			case slices.Equal(got, want):
				harmless++
			case len(got) < len(want) && len(got) >= len(want)-inTail && slices.Equal(got, want[:len(got)]):
				tail++
				if !strings.Contains(f.name, "/log/") {
					t.Errorf("%s: the end of the log is lost", what)
				}
			default:
				t.Errorf("%s: serves %d entries %.60q, acknowledged are %d", what, len(got), got, len(want))
			}
		}
		t.Logf("%-75s %6d bytes, found %d", f.name, len(f.content), found-before)
	}
	t.Logf("found %d, without effect %d, taken for the torn end of the log %d", found, harmless, tail)
	if found == 0 || harmless == 0 {
		t.Error("nothing was tried")
	}
}

// flipLife writes entries and takes two snapshots, and returns the state of the machine.
func flipLife(t *testing.T, disk vfs.FS, options func(vfs.FS) Options, entries int) []string {
	if err := vfs.MkdirAll(disk, "/node"); err != nil {
		t.Fatal(err)
	}
	s, err := Open(options(disk))
	if err != nil {
		t.Fatal(err)
	}
	m, l := &listMachine{}, groupLife{}
	g, err := s.StartGroup(crashGroup("shard-0", m))
	if err != nil {
		t.Fatal(err)
	}
	for i := range entries {
		if err := l.propose(g, strings.Repeat(fmt.Sprint("entry ", i, " "), 20)); err != nil {
			t.Fatal(err)
		}
		if i == entries/3 || i == 2*entries/3 {
			if err := g.Snapshot(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return m.list()
}

// lookAtFlipped starts the store and returns the state that the group serves.
func lookAtFlipped(disk vfs.FS, options func(vfs.FS) Options) (got []string, err error) {
	s, err := Open(options(disk))
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := s.Close(); err == nil && cerr != nil {
			err = cerr
		}
	}()
	m, l := &listMachine{}, groupLife{}
	g, err := s.StartGroup(crashGroup("shard-0", m))
	if err != nil {
		return nil, err
	}
	if err := l.propose(g, "look"); err != nil {
		return nil, err
	}
	got = m.list()
	return got[:len(got)-1], nil
}

type fileOnDisk struct {
	name    string
	content []byte
}

// filesOf lists the files below dir.
func filesOf(t *testing.T, disk vfs.FS, dir string) (out []fileOnDisk) {
	entries, err := disk.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if e.IsDir() {
			out = append(out, filesOf(t, disk, name)...)
			continue
		}
		b, err := vfs.ReadFile(disk, name)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fileOnDisk{name, b})
	}
	return out
}

// placesIn returns the offsets to try: the beginning and the end of the written part, places in between, and one after
// it.
func placesIn(b []byte) (out []int) {
	end := len(bytes.TrimRight(b, "\x00"))
	stride := max(1, end/150)
	for i := 0; i < end; i++ {
		if i < 24 || i >= end-8 || i%stride == 0 {
			out = append(out, i)
		}
	}
	if end < len(b) {
		out = append(out, end, (end+len(b))/2)
	}
	return out
}

func flipAt(t *testing.T, disk vfs.FS, name string, at int) {
	f, err := disk.OpenFile(name, os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	if _, err := f.ReadAt(b[:], int64(at)); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	b[0] ^= 1 << (at % 8)
	_, err = f.WriteAt(b[:], int64(at))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}
