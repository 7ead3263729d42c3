package replica

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore"
)

// newHost returns a host of the server "me" without replicas.
func newHost(t *testing.T, opts Options) *Host {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	opts.Node, opts.FS, opts.DataDir = "me", vfs.OS, t.TempDir()
	opts.Logger = slog.New(slog.DiscardHandler)
	if opts.MayLog == nil {
		opts.MayLog = func(rowraft.ShardID, rowraft.FormatVersion) error { return nil }
	}
	h := New(opts)
	store, err := raftstore.Open(raftstore.Options{
		Dir: filepath.Join(opts.DataDir, "raft"), Cluster: "c", Node: "me", Listener: l, DiskReserveBytes: -1,
		DiskStallLimit: time.Minute, Logger: opts.Logger,
		Resolve: func(rowraft.NodeID) (string, error) { return "", errors.New("no other server runs") },
		Fatal:   func(err error) { t.Error(err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	h.Open(store)
	t.Cleanup(func() {
		if err := errors.Join(h.Close(), store.Close()); err != nil {
			t.Error(err)
		}
	})
	return h
}

// follow gives h a map with one shard.
func follow(t *testing.T, h *Host, s clustermap.Shard) {
	t.Helper()
	m, err := clustermap.New(clustermap.Map{Version: 1, Shards: []clustermap.Shard{s}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Follow(m); err != nil {
		t.Fatal(err)
	}
}

func (h *Host) running() rowraft.ReplicaID {
	if r := h.replica(0); r != nil {
		return r.id
	}
	return ""
}

func list(ids ...string) []clustermap.Replica {
	var out []clustermap.Replica
	for _, id := range ids {
		node := rowraft.NodeID("other-" + id)
		if id[0] == 'm' {
			node = "me"
		}
		out = append(out, clustermap.Replica{ID: rowraft.ReplicaID(id), Node: node})
	}
	return out
}

func removed(id string) []clustermap.Removed {
	return []clustermap.Removed{{Replica: list(id)[0], Version: 7}}
}

// A shard on a node is founded, leaves, and comes back as another replica. After each step the node sees
// all older maps again, as after a restart.
func TestOldMapsBringNothingBack(t *testing.T) {
	h := newHost(t, Options{})
	maps := []struct {
		shard clustermap.Shard
		runs  rowraft.ReplicaID
	}{
		{clustermap.Shard{Replicas: list("m1", "a", "b")}, "m1"},
		{clustermap.Shard{Replicas: list("m1", "a", "b"), Learners: list("c")}, "m1"},
		{clustermap.Shard{Replicas: list("c", "a", "b"), Removed: removed("m1"), Changes: 2}, ""},
		{clustermap.Shard{Replicas: list("c", "a", "b"), Changes: 2}, ""},
		{clustermap.Shard{Replicas: list("c", "a", "b"), Learners: list("m2"), Changes: 2}, "m2"},
		{clustermap.Shard{Replicas: list("c", "m2", "b"), Removed: removed("a"), Changes: 4}, "m2"},
		{clustermap.Shard{Replicas: list("c", "a2", "b"), Removed: removed("m2"), Changes: 6}, ""},
		{clustermap.Shard{Replicas: list("c", "a2", "b"), Learners: list("m3"), Removed: removed("m2"), Changes: 6}, "m3"},
	}
	for i, step := range maps {
		for _, old := range maps[:i] {
			follow(t, h, old.shard)
		}
		follow(t, h, step.shard)
		if got := h.running(); got != step.runs {
			t.Fatalf("after map %d, %+v: it runs %q, want %q", i, step.shard, got, step.runs)
		}
	}
	if !h.store.Removed("shard-0", "m1") || !h.store.Removed("shard-0", "m2") {
		t.Errorf("the store knows that m1 left: %v, that m2 left: %v", h.store.Removed("shard-0", "m1"),
			h.store.Removed("shard-0", "m2"))
	}
}

// A replica that joins a shard waits for the leader; so does a founder that starts after the members have
// changed. Only the original founders may write the first entry.
func TestOnlyFoundersFound(t *testing.T) {
	for name, tc := range map[string]struct {
		shard  clustermap.Shard
		founds bool
	}{
		"a founder":                   {clustermap.Shard{Replicas: list("m", "a", "b")}, true},
		"a founder next to a learner": {clustermap.Shard{Replicas: list("m", "a", "b"), Learners: list("c")}, true},
		"a learner":                   {clustermap.Shard{Replicas: list("a", "b", "c"), Learners: list("m")}, false},
		"a learner that became one":   {clustermap.Shard{Replicas: list("a", "b", "m", "c"), Changes: 1}, false},
		"a founder that starts later": {clustermap.Shard{Replicas: list("m", "a", "c"), Changes: 2}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, Options{})
			follow(t, h, tc.shard)
			if got := h.replica(0).group.Status().LastIndex > 0; got != tc.founds {
				t.Errorf("its log has an entry: %v, want %v", got, tc.founds)
			}
		})
	}
}

// A server was killed after it had recorded that a replica left, and before it deleted the data. The next
// look deletes them.
func TestDeletionIsFinished(t *testing.T) {
	h := newHost(t, Options{})
	follow(t, h, clustermap.Shard{Replicas: list("m", "a", "b")})
	left := clustermap.Shard{Replicas: list("c", "a", "b"), Removed: removed("m"), Changes: 2}
	follow(t, h, left)
	dirs, err := filepath.Glob(filepath.Join(filepath.Join(h.opts.DataDir, "raft"), "groups", "*"))
	if err != nil || len(dirs) != 0 {
		t.Fatalf("directories %v (%v), want none", dirs, err)
	}
	crumbs := []string{filepath.Join(h.opts.DataDir, "raft", "groups", "shard-0", "log"),
		filepath.Join(h.opts.DataDir, "cold", "shard-0.m", "rows")}
	for _, dir := range crumbs {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	follow(t, h, left)
	for _, dir := range crumbs {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("what a crash left is still there: %s, %v", dir, err)
		}
	}
}

// TestADeletionLeavesTheColdRowsOfTheNextReplica: a map still lists a replica as removed while another one of the
// shard has rows on disk, and does not run yet after a start.
func TestADeletionLeavesTheColdRowsOfTheNextReplica(t *testing.T) {
	h := newHost(t, Options{})
	next := clustermap.Shard{Replicas: list("c", "a", "b"), Learners: list("m2"), Removed: removed("m1"), Changes: 2}
	rows := filepath.Join(h.opts.DataDir, "cold", "shard-0.m2", "rows")
	if err := os.MkdirAll(rows, 0o700); err != nil {
		t.Fatal(err)
	}
	follow(t, h, next)
	if _, err := os.Stat(rows); err != nil || h.running() != "m2" {
		t.Errorf("the rows of replica %q: %v", h.running(), err)
	}
}
