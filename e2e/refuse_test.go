package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/internal/localcluster"
)

// The data of one cluster is never mixed with another's, nor used twice.
func TestForeignDataIsRefused(t *testing.T) {
	one, other := start(t, localcluster.Options{}), start(t, localcluster.Options{})
	n1, n2 := one.Servers()[0], one.Servers()[1]
	// While a server runs its files come and go under a copy.
	one.killAll(one.Servers()[:2])
	copied, mixed := copyDir(t, n1.DataDir), copyDir(t, n1.DataDir)
	if err := os.RemoveAll(filepath.Join(mixed, "raft")); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(mixed, "raft"), os.DirFS(filepath.Join(n2.DataDir, "raft"))); err != nil {
		t.Fatal(err)
	}
	one.restartAll(one.Servers()[:2])

	t.Run("a directory in use", func(t *testing.T) {
		refused(t, n1.DataDir, one.Endpoints(), 1, "is in use by the process with pid")
	})
	t.Run("a directory of another cluster", func(t *testing.T) {
		refused(t, copied, other.Endpoints(), 6, "belongs to cluster")
	})
	t.Run("the log of another node under this identity", func(t *testing.T) {
		refused(t, mixed, one.Endpoints(), 6, "belongs to server "+string(n2.ID()))
	})
	t.Run("a log that was lost", func(t *testing.T) {
		one.killAll(one.Servers()[2:])
		n3 := one.Servers()[2]
		lost := copyDir(t, n3.DataDir)
		if err := os.RemoveAll(filepath.Join(lost, "raft")); err != nil {
			t.Fatal(err)
		}
		refused(t, lost, one.Endpoints(), 6, "logs in")
		one.restartAll(one.Servers()[2:])
	})
	one.sameDigests()
	other.sameDigests()
}

// refused starts a server on a directory and wants it to end with an error that
// says a text.
func refused(t *testing.T, dir string, join []string, exit int, says string) {
	t.Helper()
	p := spawn(t, "rowraft", "server", "--insecure", "--with-scheduler", "--log-format", "json", "--data-dir", dir,
		"--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0", "--join", strings.Join(join, ","))
	if code := p.code(t, patience); code != exit {
		t.Errorf("exit code %d, want %d", code, exit)
	}
	var said string // the last line but the logs
	for line := range strings.Lines(p.stderr.String()) {
		if !json.Valid([]byte(line)) {
			said += line
		}
	}
	t.Logf("it says: %s", said)
	if !strings.HasPrefix(said, "rowraft: ") || !strings.Contains(said, says) {
		t.Errorf("it says %q, want %q in it", said, says)
	}
}

func copyDir(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}
