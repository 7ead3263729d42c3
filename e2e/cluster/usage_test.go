package cluster

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLeftoversAreFound(t *testing.T) {
	dir := t.TempDir()
	if got, err := Leftovers(dir); err != nil || len(got) != 0 {
		t.Fatalf("with nothing left: %q, %v", got, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.Command("sh", "-c", "read line", filepath.Join(dir, "data")) // waits for its input
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// A process has no command line for a moment after its start.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var got []string
	_ = Poll(ctx, func() error {
		if got, err = Leftovers(dir); len(got) < 2 {
			return errors.New("something is not shown")
		}
		return nil
	})
	in.Close()
	_ = cmd.Wait()
	if err != nil || len(got) != 2 || !strings.Contains(got[0], "read line") || !strings.Contains(got[1], "listens on") {
		t.Errorf("with a process and a listener left: %q, %v", got, err)
	}
}

func TestStoredBytesAndStatusField(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "d/b"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 100), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := storedBytes(dir); n != 200 || err != nil {
		t.Errorf("storedBytes = %d, %v", n, err)
	}
	if n := statusField([]byte("Name:\tx\nVmRSS:\t  123 kB\n"), "VmRSS:"); n != 123 {
		t.Errorf("statusField = %d", n)
	}
}
