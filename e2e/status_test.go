package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/localcluster"
)

// statusSays waits until `cluster status` prints all texts. An election, which makes it critical, ends meanwhile.
func (c *cluster) statusSays(texts ...string) {
	c.t.Helper()
	if err := poll(deadline(c.t, patience), func() error {
		out := c.clusterStatus()
		for _, text := range texts {
			if !strings.Contains(out, text) {
				return fmt.Errorf("want %q in\n%s", text, out)
			}
		}
		return nil
	}); err != nil {
		c.t.Fatal(err)
	}
}

// TestStatusOfASlowDisk: `cluster status` names the server whose disk is slow, with the time of an fsync.
func TestStatusOfASlowDisk(t *testing.T) {
	needBinaries(t)
	beforeRelease(t)
	binary, dir := filepath.Join(bin, "rowraft-faults"), t.TempDir()
	if err := goBuild("-tags", "rowraft_faults", "-o", binary, "./cmd/rowraft"); err != nil {
		t.Fatal(err)
	}
	const file = ".disk.json"
	c := start(t, localcluster.Options{Binary: binary, Dir: dir,
		Env: []string{"ROWRAFT_DISK_FAULTS=" + localcluster.PerServer(dir, file)}})
	p := c.startPusher(4)
	defer p.stop()
	c.healthy([]string{"cluster", "status"})
	slow := []byte(`[{"ops": ["sync"], "delay_ns": 200000000}]`)
	if err := os.WriteFile(filepath.Join(dir, "n2"+file), slow, 0o600); err != nil {
		t.Fatal(err)
	}
	c.statusSays("degraded: ", "  warning   The disk of server n2 is slow: fsync takes 2", "profile fast needs ≤ 50 ms",
		"(runbook slow-disk)")
}

// TestStatusOfABrokenCheckpoint: `cluster status` says why a policy makes no checkpoints, until it makes one again.
func TestStatusOfABrokenCheckpoint(t *testing.T) {
	needBinaries(t)
	beforeRelease(t)
	c := start(t, localcluster.Options{})
	dest := filepath.Join(t.TempDir(), "checkpoints")
	if err := os.Mkdir(dest, 0o700); err != nil {
		t.Fatal(err)
	}
	c.must("table", "create", "users", "--dim", "4", "--if-not-exists")
	c.must("checkpoint", "policy", "set", "often", "--to", dest, "--every", "1s", "--keep", "2")
	c.must("checkpoint", "policy", "run-now", "often")
	c.healthy([]string{"cluster", "status"})

	if err := os.Rename(dest, dest+".kept"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dest, nil, 0o600); err != nil { // in the place of the directory
		t.Fatal(err)
	}
	c.statusSays("degraded: ", "  warning   Checkpoint policy often has failed ", "the last one, often-",
		"not a directory", "rowraft checkpoint policy describe often")
	if err := os.Remove(dest); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dest+".kept", dest); err != nil {
		t.Fatal(err)
	}
	c.healthy([]string{"cluster", "status"})
}

// TestStatusOfAWipedServer: a server that comes back with an empty disk is up at once, but `cluster status` is healthy
// only when its replicas have the rows again.
func TestStatusOfAWipedServer(t *testing.T) {
	needBinaries(t)
	beforeRelease(t)
	const dim, rows = 64, 40_000
	c := start(t, localcluster.Options{Args: []string{ // replicas are rebuilt from snapshots, in some 10 s
		"--snapshot-every-bytes", "500000", "--trailing-log-bytes", "50000", "--log-segment-bytes", "100000",
		"--snapshot-send-bytes-per-second", "1048576",
	}})
	table, err := c.dial(client.Options{}).CreateTable(deadline(t, patience), rowraft.Schema{
		Name: "users", Kind: rowraft.Sparse, Dim: dim, Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
		Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	keys, values := make([]rowraft.Key, rows/20), make([]float32, rows/20*dim)
	for i := range values {
		values[i] = 1
	}
	for batch := range 20 {
		for i := range keys {
			keys[i] = rowraft.Key(batch*len(keys) + i)
		}
		if _, err := table.Push(deadline(t, patience), keys, values); err != nil {
			t.Fatal(err)
		}
	}
	c.healthy([]string{"cluster", "status"})

	wiped := c.Servers()[2]
	c.killAll([]*localcluster.Server{wiped})
	if err := os.RemoveAll(wiped.DataDir); err != nil {
		t.Fatal(err)
	}
	c.restartAll([]*localcluster.Server{wiped})
	c.statusSays("degraded: ", "Server n3 came back with an empty disk: ", "of its replicas are not rebuilt yet",
		"rowraft operation list")
	c.healthy([]string{"cluster", "status"})
	if got := c.sameDigests(); got != rows { // healthy is true: every replica has every row
		t.Errorf("the replicas agree on %d rows, want %d", got, rows)
	}
}
