package localcluster

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/rowraft/rowraft/internal/vfs"
)

// TestServersInheritALock: it is held while a server lives, also when the process that took it has closed it.
func TestServersInheritALock(t *testing.T) {
	dir := t.TempDir()
	binary, name := filepath.Join(dir, "server"), filepath.Join(dir, "LOCK")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := vfs.OS.Lock(name)
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{opts: Options{Binary: binary, Dir: dir, Servers: 1, Inherit: lock.(*os.File)}}
	s := &Server{Name: "n1"}
	var pair [2]*net.TCPListener
	defer func() { closeAll(pair) }()
	if err := errors.Join(c.prepare(s, &pair), c.launch(s, pair), lock.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := vfs.OS.Lock(name); err == nil {
		t.Error("the lock is free while the server lives")
	}
	if err := errors.Join(s.Kill(), c.release()); err != nil {
		t.Fatal(err)
	}
	if lock, err = vfs.OS.Lock(name); err != nil {
		t.Fatalf("the server has ended: %v", err)
	}
	lock.Close()
}
