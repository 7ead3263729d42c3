package vfs_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rowraft/rowraft/internal/vfs"
)

func TestOneOwnerPerLock(t *testing.T) {
	name := filepath.Join(t.TempDir(), "LOCK")
	first, err := vfs.OS.Lock(name)
	if err != nil {
		t.Fatal(err)
	}
	_, err = vfs.OS.Lock(name)
	locked, ok := errors.AsType[*vfs.LockedError](err)
	if !ok || locked.Owner != strconv.Itoa(os.Getpid()) || locked.Name != name {
		t.Fatalf("a second lock gives %v, want a LockedError with our pid", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := vfs.OS.Lock(name)
	if err != nil {
		t.Fatalf("lock after its release: %v", err)
	}
	again.Close()
}

func TestAllocateGrowsAndKeeps(t *testing.T) {
	f, err := vfs.OS.OpenFile(filepath.Join(t.TempDir(), "f"), os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("kept"), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Allocate(1 << 20); err != nil {
		t.Fatal(err)
	}
	info, err := vfs.OS.Stat(f.Name())
	if err != nil || info.Size() != 1<<20 {
		t.Errorf("after Allocate the file has %v bytes (%v), want %d", info.Size(), err, 1<<20)
	}
	b := make([]byte, 5)
	if _, err := f.ReadAt(b, 0); err != nil || string(b) != "kept\x00" {
		t.Errorf("the file begins with %q (%v)", b, err)
	}
}

func TestMkdirAllAndRemoveAll(t *testing.T) {
	root := t.TempDir()
	deep := filepath.Join(root, "a", "b", "c")
	for range 2 {
		if err := vfs.MkdirAll(vfs.OS, deep); err != nil {
			t.Fatal(err)
		}
	}
	if err := vfs.WriteFile(vfs.OS, filepath.Join(deep, "f"), []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := vfs.MkdirAll(vfs.OS, filepath.Join(deep, "f", "g")); err == nil {
		t.Error("a directory below a file was made")
	}
	for range 2 {
		if err := vfs.RemoveAll(vfs.OS, filepath.Join(root, "a")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := vfs.OS.Stat(filepath.Join(root, "a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after RemoveAll Stat gives %v", err)
	}
}

func TestReplaceFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	for _, want := range []string{"a longer first content", "second"} {
		if err := vfs.ReplaceFile(vfs.OS, name+".tmp", name, []byte(want)); err != nil {
			t.Fatal(err)
		}
		if got, err := vfs.ReadFile(vfs.OS, name); err != nil || string(got) != want {
			t.Errorf("ReadFile gives %q (%v), want %q", got, err, want)
		}
	}
	if _, err := vfs.OS.Stat(name + ".tmp"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary file is left: %v", err)
	}
}
