package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestDevStartsAfterAnInterruption: `rowraft dev` is killed in the middle of its first start, and the next one works.
func TestDevStartsAfterAnInterruption(t *testing.T) {
	needBinaries(t)
	dir, port := t.TempDir(), fmt.Sprint(devPort(t))
	dev := func(flag ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "rowraft"),
			append([]string{"dev", "--dir", dir, "--port", port}, flag...)...)
		cmd.WaitDelay = time.Second
		return cmd
	}
	for _, seen := range []string{"LOCK", "certs.new", "n1", "n2.ready", "n1/raft/groups/meta"} {
		p := spawn(t, "rowraft", "dev", "--dir", dir, "--port", port)
		err := poll(deadline(t, patience), func() error {
			select {
			case <-p.ended:
				return nil
			default:
			}
			_, err := os.Stat(filepath.Join(dir, seen))
			if _, done := os.Stat(filepath.Join(dir, "certs")); seen == "certs.new" && done == nil {
				return nil // it was there for a moment
			}
			return err
		})
		p.kill() // its servers end with it
		if code := p.cmd.ProcessState.ExitCode(); err != nil || code != -1 {
			t.Fatalf("the start that is to be killed at %s has exit code %d, %v:\n%s%s", seen, code, err, &p.stdout, &p.stderr)
		}
	}
	t.Cleanup(func() { // fails if the servers have stopped
		_ = exec.Command(filepath.Join(bin, "rowraft"), "dev", "--stop", "--dir", dir).Run()
	})
	if out, err := dev("--detach").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := dev("--detach").CombinedOutput(); err == nil {
		t.Errorf("a second one in one directory: %s", out)
	}
	if out, err := dev("--stop").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
