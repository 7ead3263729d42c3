package node

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/proto/rowraft/v1"
)

// tierCluster is a cluster with one tiered table, on disks in memory.
type tierCluster struct {
	*testCluster
	installs atomic.Int32 // snapshots that replaced the state of a server
	disks    []*vfs.Mem
	table    *client.Table
	rows     int
}

func startTierCluster(t *testing.T, servers int) *tierCluster {
	c := &tierCluster{}
	c.testCluster = startClusterWith(t, servers, 1, func(cfg *Config) {
		c.disks = append(c.disks, vfs.NewMem())
		cfg.FS = c.disks[len(c.disks)-1]
		cfg.SnapshotEveryBytes, cfg.TrailingLogBytes, cfg.LogSegmentBytes = 100_000, 5_000, 64<<10
		cfg.ScrubBytesPerSecond = -1 // it reads cold rows
		cfg.Logger = slog.New(installLog{&c.installs})
	})
	s := counterSchema("user")
	s.Memory = rowraft.MinMemory
	var err error
	if c.table, err = c.dial().CreateTable(testutil.Context(t), s, false); err != nil {
		t.Fatal(err)
	}
	return c
}

// installLog counts the log lines of installs.
type installLog struct{ n *atomic.Int32 }

func (l installLog) Enabled(context.Context, slog.Level) bool { return true }
func (l installLog) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l installLog) WithGroup(string) slog.Handler            { return l }
func (l installLog) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "installed a snapshot") {
		l.n.Add(1)
	}
	return nil
}

// snapshot returns the index of the newest snapshot of server i.
func (c *tierCluster) snapshot(i int) (index uint64) {
	dir := filepath.Join(c.nodes[i].cfg.DataDir, "raft", "groups", "shard-0", "snapshots")
	list, err := c.disks[i].ReadDir(dir)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, e := range list {
		var n uint64
		if _, err := fmt.Sscanf(e.Name(), "%d", &n); err == nil && !strings.HasSuffix(e.Name(), ".tmp") {
			index = max(index, n)
		}
	}
	return index
}

// push adds rows.
func (c *tierCluster) push(n int) {
	c.t.Helper()
	for end := c.rows + n; c.rows < end; {
		var keys []rowraft.Key
		for range min(250, end-c.rows) {
			keys = append(keys, rowraft.Key(c.rows))
			c.rows++
		}
		grads := make([]float32, 4*len(keys))
		for i := range grads {
			grads[i] = -1
		}
		if _, err := c.table.Push(testutil.Context(c.t), keys, grads); err != nil {
			c.t.Fatal(err)
		}
	}
}

// kill cuts the power of a server, and returns when it has ended.
func (c *tierCluster) kill(i int, seed uint64) {
	n := c.nodes[i]
	c.disks[i] = c.disks[i].Crash(seed)
	c.mu.Lock()
	delete(c.conns, n)
	c.mu.Unlock()
	n.cancel()
	n.cancel = nil
	<-n.done // with an error of its disk
	n.cfg.FS = c.disks[i]
}

// replica returns the replica and the table on server i, as soon as it has applied the table's creation.
func (c *tierCluster) replica(i int) (r *rowraftv1.ReplicaStatus, table *rowraftv1.TableStats) {
	c.t.Helper()
	testutil.Eventually(c.t, "the server has the table", func() bool {
		st, err := c.admin(i).NodeStatus(testutil.Context(c.t), &rowraftv1.NodeStatusRequest{})
		if err != nil || len(st.Replicas) != 1 || len(st.Replicas[0].Tables) != 1 {
			return false
		}
		r, table = st.Replicas[0], st.Replicas[0].Tables[0]
		return true
	})
	return r, table
}

// sameDigests compares the replicas, and then the rows with what was pushed.
func (c *tierCluster) sameDigests() {
	c.t.Helper()
	ctx := testutil.Context(c.t)
	index := uint64(0)
	for i := range c.nodes {
		r, _ := c.replica(i)
		index = max(index, r.AppliedIndex)
	}
	var want *rowraftv1.DigestReply
	for i := range c.nodes {
		d, err := c.admin(i).Digest(ctx, &rowraftv1.DigestRequest{MinIndex: index})
		if err != nil {
			c.t.Fatal(err)
		}
		if want == nil {
			want = d
		}
		if string(d.Digest) != string(want.Digest) || d.Rows != uint64(c.rows) {
			c.t.Errorf("server %d has %d rows and digest %x, want %d and %x", i, d.Rows, d.Digest, c.rows, want.Digest)
		}
	}
	for first := 0; first < c.rows; first += 1000 {
		var keys []rowraft.Key
		for k := first; k < min(first+1000, c.rows); k++ {
			keys = append(keys, rowraft.Key(k))
		}
		got := make([]float32, 4*len(keys))
		if err := c.table.Pull(ctx, keys, got); err != nil {
			c.t.Fatal(err)
		}
		for i, w := range got {
			if w != 1 {
				c.t.Fatalf("a weight of row %d is %v, want 1", keys[i/4], w)
			}
		}
	}
}

// snapshotsTaken waits until all servers have dropped the begin of their log.
func (c *tierCluster) snapshotsTaken(after uint64) {
	c.t.Helper()
	testutil.Eventually(c.t, "all servers take a snapshot", func() bool {
		c.push(250)
		for i, n := range c.nodes {
			if n.cancel == nil {
				continue
			}
			if c.snapshot(i) <= after {
				return false
			}
		}
		return true
	})
}

// TestATieredServerRestartsFromItsFile: all servers lose the power. None of them reads a cold row at its start, and
// all rows are there.
func TestATieredServerRestartsFromItsFile(t *testing.T) {
	c := startTierCluster(t, 3)
	c.push(3000)
	for round := range uint64(2) {
		c.snapshotsTaken(max(c.snapshot(0), c.snapshot(1), c.snapshot(2)))
		for i := range c.nodes {
			c.kill(i, 5+round)
		}
		for _, n := range c.nodes {
			n.start(t)
		}
		for i, n := range c.nodes {
			n.awaitReady(t)
			testutil.Eventually(t, "the log is applied", func() bool {
				_, table := c.replica(i)
				return table.Rows >= uint64(c.rows)
			})
			if _, table := c.replica(i); table.ColdRowsRead != 0 || table.ColdRows < table.Rows/2 {
				t.Errorf("server %d has read %d rows at its start, %d of %d rows are on disk", i, table.ColdRowsRead,
					table.ColdRows, table.Rows)
			}
		}
		c.sameDigests()
	}
}

// TestATieredFollowerGetsTheRowsOfASnapshot: a server whose log is too old gets a snapshot of the leader with all rows,
// and starts from a file of its own after that.
func TestATieredFollowerGetsTheRowsOfASnapshot(t *testing.T) {
	c := startTierCluster(t, 3)
	c.push(2000)
	c.snapshotsTaken(0) // a replica that has none when it starts counts the leader's as its start, not as an install
	late := 0
	if r, _ := c.replica(late); r.Role == "leader" {
		late = 1
	}
	c.kill(late, vfs.LoseUnsynced)
	for range 3 { // one may be of the next entry, and the log is cut after a snapshot is listed
		c.snapshotsTaken(max(c.snapshot(0), c.snapshot(1), c.snapshot(2)))
	}
	c.restart(late)
	c.sameDigests()
	if _, table := c.replica(late); c.installs.Load() == 0 || table.ColdRows == 0 {
		t.Errorf("%d snapshots were installed, %d rows are on disk", c.installs.Load(), table.ColdRows)
	}
	c.kill(late, vfs.KeepUnsynced)
	c.restart(late)
	c.sameDigests()
	files, err := c.disks[late].ReadDir(filepath.Join(c.nodes[late].cfg.DataDir, "cold"))
	if err == nil && len(files) == 1 {
		files, err = c.disks[late].ReadDir(filepath.Join(c.nodes[late].cfg.DataDir, "cold", files[0].Name()))
	}
	if err != nil || len(files) != 1 {
		t.Errorf("%d files of cold rows, want one: %v", len(files), err)
	}
}
