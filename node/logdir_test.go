package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

func TestLostLogsAreNoticed(t *testing.T) {
	dir := t.TempDir()
	if err := checkLogDir(vfs.OS, dir, ""); err != nil {
		t.Fatalf("a new server: %v", err)
	}
	if err := checkLogDir(vfs.OS, dir, ""); err != nil {
		t.Errorf("a server that ended before it joined: %v", err)
	}
	if err := checkLogDir(vfs.OS, dir, "c1"); err != nil {
		t.Errorf("a server that ended right after it joined: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "raft", "groups")); err != nil {
		t.Fatal(err)
	}
	if err := checkLogDir(vfs.OS, dir, "c1"); rowraft.CodeOf(err) != rowraft.CodeIdentity {
		t.Errorf("a member whose disk of logs is not mounted: %v, want code Identity", err)
	}
	if err := os.Remove(filepath.Join(dir, "raft")); err != nil {
		t.Fatal(err)
	}
	if err := checkLogDir(vfs.OS, dir, "c1"); rowraft.CodeOf(err) != rowraft.CodeIdentity {
		t.Errorf("a member without logs: %v, want code Identity", err)
	}
}
