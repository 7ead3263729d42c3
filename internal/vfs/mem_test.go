package vfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rowraft/rowraft/internal/vfs"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// create writes a file without a sync.
func create(t testing.TB, d vfs.FS, name, content string) vfs.File {
	t.Helper()
	f, err := d.OpenFile(name, os.O_CREATE|os.O_RDWR|os.O_TRUNC)
	must(t, err)
	_, err = f.Write([]byte(content))
	must(t, err)
	return f
}

func content(t testing.TB, d vfs.FS, name string) string {
	t.Helper()
	b, err := vfs.ReadFile(d, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "(none)"
	}
	must(t, err)
	return string(b)
}

func TestCrashLosesWhatWasNotSynced(t *testing.T) {
	d := vfs.NewMem()
	must(t, d.Mkdir("/d"))
	must(t, d.SyncDir("/"))
	must(t, vfs.WriteFile(d, "/d/named", []byte("old")))
	must(t, d.SyncDir("/d"))
	must(t, vfs.WriteFile(d, "/d/unnamed", []byte("synced, but its directory is not")))
	f, err := d.OpenFile("/d/named", os.O_RDWR)
	must(t, err)
	_, err = f.WriteAt([]byte("new and longer"), 0)
	must(t, err)
	must(t, d.Mkdir("/lost"))

	lost := d.Crash(vfs.LoseUnsynced)
	if got := content(t, lost, "/d/named"); got != "old" {
		t.Errorf("the unsynced write is there: %q", got)
	}
	if got := content(t, lost, "/d/unnamed"); got != "(none)" {
		t.Errorf("fsync of a file kept its name: %q", got)
	}
	if _, err := lost.Stat("/lost"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the unsynced directory is there: %v", err)
	}
	kept := d.Crash(vfs.KeepUnsynced)
	if got := content(t, kept, "/d/named") + content(t, kept,
		"/d/unnamed"); got != "new and longersynced, but its directory is not" {
		t.Errorf("the other outcome of the same moment has %q", got)
	}
}

// TestAFailedSyncLosesItsPages: a failed sync loses its pages. They can be read, a later sync does not write them, and
// only what is written again survives.
func TestAFailedSyncLosesItsPages(t *testing.T) {
	mem := vfs.NewMem()
	disk := vfs.NewFaulty(mem)
	f, err := disk.OpenFile("/f", os.O_CREATE|os.O_RDWR)
	must(t, err)
	write := func(s string, at int64) {
		_, err := f.WriteAt([]byte(s), at)
		must(t, err)
	}
	write("aaaaaa", 0)
	must(t, f.Sync())
	must(t, disk.SyncDir("/"))
	write("bbbb", 1)
	must(t, disk.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpSync}, Err: "EIO", Times: 1}))
	if err := f.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("the sync that fails: %v", err)
	}
	write("c", 2)
	mem = mem.Kill()
	if got := content(t, mem, "/f"); got != "abcbba" {
		t.Errorf("the next process reads %q, want %q", got, "abcbba")
	}
	f, err = mem.OpenFile("/f", os.O_RDWR)
	must(t, err)
	must(t, f.Sync())
	if got := content(t, mem.Crash(vfs.LoseUnsynced), "/f"); got != "aacaaa" {
		t.Errorf("after a later sync and a power loss: %q, want %q", got, "aacaaa")
	}
}

func TestCrashEndsTheOldLife(t *testing.T) {
	d := vfs.NewMem()
	f := create(t, d, "f", "x")
	lock, err := d.Lock("LOCK")
	must(t, err)
	if _, err := d.Lock("LOCK"); err == nil {
		t.Error("a second lock was given")
	}
	next := d.Kill()
	_, werr := f.Write([]byte("y"))
	_, rerr := f.ReadAt(make([]byte, 1), 0)
	_, oerr := d.OpenFile("f", os.O_RDONLY)
	for _, err := range []error{werr, rerr, oerr, f.Sync(), f.Truncate(0), d.Mkdir("m"), d.SyncDir("/"), d.Remove("f"),
		d.Rename("f", "g"), lock.Close()} {
		if !errors.Is(err, vfs.ErrCrashed) {
			t.Errorf("an operation of the old life gives %v", err)
		}
	}
	if got := content(t, next, "f"); got != "x" {
		t.Errorf("after Kill the file has %q", got)
	}
	if _, err := next.Lock("LOCK"); err != nil {
		t.Errorf("the lock outlived its process: %v", err)
	}
	if got := content(t, next.Crash(vfs.LoseUnsynced), "f"); got != "(none)" {
		t.Errorf("Kill made a file durable: %q", got)
	}
}

// TestEachOutcomeOfARenameHappens: a file is replaced without a sync of the directory; each possible
// outcome must occur, and no other.
func TestEachOutcomeOfARenameHappens(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(300) {
		d := vfs.NewMem()
		must(t, vfs.WriteFile(d, "f", []byte("old")))
		must(t, d.SyncDir("."))
		must(t, vfs.WriteFile(d, "f.new", []byte("new")))
		must(t, d.Rename("f.new", "f"))
		c := d.Crash(seed)
		seen[content(t, c, "f")+" "+content(t, c, "f.new")]++
	}
	for _, want := range []string{"old (none)", "old new", "new (none)"} {
		if seen[want] == 0 {
			t.Errorf("outcome %q never happened", want)
		}
		delete(seen, want)
	}
	if len(seen) > 0 {
		t.Errorf("impossible outcomes: %v", seen)
	}
}

// TestWritesTearAtSectors: each sector of an unsynced overwrite is old or new.
func TestWritesTearAtSectors(t *testing.T) {
	const sectors = 4
	seen := map[string]bool{}
	for seed := range uint64(500) {
		d := vfs.NewMem()
		must(t, vfs.WriteFile(d, "f", bytes.Repeat([]byte("o"), sectors*512)))
		must(t, d.SyncDir("."))
		f, err := d.OpenFile("f", os.O_RDWR)
		must(t, err)
		_, err = f.WriteAt(bytes.Repeat([]byte("n"), sectors*512), 0)
		must(t, err)
		got := content(t, d.Crash(seed), "f")
		var shape strings.Builder
		for s := range sectors {
			part := got[s*512 : (s+1)*512]
			if part != strings.Repeat(part[:1], 512) {
				t.Fatalf("seed %d tore sector %d", seed, s)
			}
			shape.WriteString(part[:1])
		}
		seen[shape.String()] = true
	}
	if len(seen) != 1<<sectors {
		t.Errorf("%d of %d shapes of a torn write were seen: %v", len(seen), 1<<sectors, seen)
	}
}

// TestLengthsTear: after an append without a sync, the file may have any length that it had, with zeros for
// missing bytes.
func TestLengthsTear(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(500) {
		d := vfs.NewMem()
		must(t, vfs.WriteFile(d, "f", []byte("ab")))
		must(t, d.SyncDir("."))
		f := create(t, d, "f", "cd") // truncates first
		_, err := f.Write([]byte("ef"))
		must(t, err)
		seen[content(t, d.Crash(seed), "f")] = true
	}
	for _, want := range []string{"ab", "", "cd", "cdef", "\x00\x00", "\x00\x00ef"} {
		if !seen[want] {
			t.Errorf("%q was never left", want)
		}
	}
	if seen["abef"] {
		t.Error("bytes came back that had been truncated, with a length from after the truncation")
	}
}

func TestSameSeedSameDisk(t *testing.T) {
	d := vfs.NewMem()
	for i := range 20 {
		create(t, d, fmt.Sprint("f", i), strings.Repeat("x", 2000))
	}
	dump := func(m *vfs.Mem) string {
		var b strings.Builder
		entries, err := m.ReadDir("/")
		must(t, err)
		for _, e := range entries {
			fmt.Fprintf(&b, "%s %q\n", e.Name(), content(t, m, e.Name()))
		}
		return b.String()
	}
	first, again := dump(d.Crash(7)), dump(d.Crash(7))
	if first != again {
		t.Error("one seed gave two disks")
	}
	if dump(d.Crash(7)) == dump(d.Crash(8)) {
		t.Error("two seeds gave one disk")
	}
}

func TestLimitIsENOSPC(t *testing.T) {
	d := vfs.NewMem()
	d.Limit(1000)
	f := create(t, d, "f", strings.Repeat("x", 600))
	if n, err := f.WriteAt(make([]byte, 600), 600); n != 400 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a write that does not fit wrote %d (%v), want 400 and ENOSPC", n, err)
	}
	if n := d.Refused(); n != 1 {
		t.Errorf("%d writes were refused, want 1", n)
	}
	if err := f.Allocate(1001); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Allocate beyond the limit: %v", err)
	}
	if free, err := d.Free("/"); err != nil || free != 0 {
		t.Errorf("Free is %d (%v)", free, err)
	}
	must(t, d.Remove("f"))
	if free, _ := d.Free("/"); free != 0 {
		t.Errorf("Free is %d while the removed file is open", free)
	}
	must(t, f.Close())
	if free, _ := d.Free("/"); free != 1000 {
		t.Errorf("Free is %d after the last file is gone", free)
	}
	if d.Open() != 0 {
		t.Errorf("%d files are open", d.Open())
	}
}

// TestDisksAgree runs one script on every disk.
func TestDisksAgree(t *testing.T) {
	root := t.TempDir()
	for _, tc := range []struct {
		name string
		disk vfs.FS
		dir  string
	}{{"os", vfs.OS, root}, {"mem", vfs.NewMem(), "/"}, {"faulty", vfs.NewFaulty(vfs.NewMem()), "/"}} {
		t.Run(tc.name, func(t *testing.T) { runDisk(t, tc.disk, strings.TrimSuffix(tc.dir, "/")) })
	}
}

func runDisk(t *testing.T, d vfs.FS, root string) {
	at := func(name string) string { return root + "/" + name }
	is := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	must(t, vfs.MkdirAll(d, at("a/b")))
	is("Mkdir of what is there", d.Mkdir(at("a")), fs.ErrExist)
	is("Mkdir below nothing", d.Mkdir(at("x/y")), fs.ErrNotExist)
	is("SyncDir of nothing", d.SyncDir(at("x")), fs.ErrNotExist)
	is("Remove of a full directory", d.Remove(at("a")), syscall.ENOTEMPTY)
	_, err := d.OpenFile(at("a/f"), os.O_RDWR)
	is("open of nothing", err, fs.ErrNotExist)
	_, err = d.Stat(at("a/f"))
	is("Stat of nothing", err, fs.ErrNotExist)

	f, err := d.OpenFile(at("a/f"), os.O_RDWR|os.O_CREATE|os.O_EXCL)
	must(t, err)
	_, err = d.OpenFile(at("a/f"), os.O_RDWR|os.O_CREATE|os.O_EXCL)
	is("a second O_EXCL", err, fs.ErrExist)
	_, err = d.OpenFile(at("a/f/g"), os.O_RDWR|os.O_CREATE)
	is("open below a file", err, syscall.ENOTDIR)
	_, err = f.Write([]byte("hello"))
	must(t, err)
	_, err = f.WriteAt([]byte("J"), 0)
	must(t, err)
	_, err = f.WriteAt([]byte("!"), 7)
	must(t, err)
	must(t, f.Allocate(10))
	must(t, f.Allocate(3))
	must(t, f.Sync())
	buf := make([]byte, 12)
	n, err := f.ReadAt(buf, 0)
	if got := string(buf[:n]); got != "Jello\x00\x00!\x00\x00" || err == nil {
		t.Errorf("ReadAt beyond the end gives %q, %v", got, err)
	}
	must(t, f.Truncate(5))
	r, err := d.OpenFile(at("a/f"), os.O_RDONLY)
	must(t, err)
	_, err = r.WriteAt([]byte("x"), 0)
	if err == nil {
		t.Error("a file opened for reading was written")
	}
	must(t, r.Close())
	is("Close twice", r.Close(), fs.ErrClosed)

	must(t, vfs.WriteFile(d, at("a/g"), []byte("other")))
	must(t, d.Rename(at("a/f"), at("a/g")))
	is("Rename of nothing", d.Rename(at("a/f"), at("a/g")), fs.ErrNotExist)
	if got := content(t, d, at("a/g")); got != "Jello" {
		t.Errorf("after the rename the file has %q", got)
	}
	_, err = f.WriteAt([]byte("C"), 0)
	must(t, err)
	if got := content(t, d, at("a/g")); got != "Cello" {
		t.Errorf("the open file did not follow its rename: %q", got)
	}
	must(t, f.Close())
	entries, err := d.ReadDir(at("a"))
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, fmt.Sprint(e.Name(), e.IsDir()))
	}
	if !slices.Equal(names, []string{"btrue", "gfalse"}) {
		t.Errorf("ReadDir gives %v", names)
	}
	must(t, d.SyncDir(at("a")))
	lock, err := d.Lock(at("LOCK"))
	must(t, err)
	_, err = d.Lock(at("LOCK"))
	if _, ok := errors.AsType[*vfs.LockedError](err); !ok {
		t.Errorf("a second lock: %v", err)
	}
	must(t, lock.Close())
	if free, err := d.Free(at("a")); err != nil || free <= 0 {
		t.Errorf("Free: %d, %v", free, err)
	}
	must(t, vfs.RemoveAll(d, at("a")))
	_, err = d.Stat(at("a"))
	is("Stat after RemoveAll", err, fs.ErrNotExist)
}
