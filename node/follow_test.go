package node

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

// follower is a node that follows the given maps and serves no client.
func follower(t *testing.T) *Node {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{
		cfg: Config{FS: vfs.OS, DataDir: t.TempDir(), LogSegmentBytes: 1 << 20}, log: slog.New(slog.DiscardHandler),
		self: clustermap.Node{ID: "me"}, replicas: make(map[rowraft.ShardID]*replica),
	}
	n.store, err = raftstore.Open(raftstore.Options{
		Dir: filepath.Join(n.cfg.DataDir, "raft"), Cluster: "c", Node: "me", Listener: l, DiskReserveBytes: -1, DiskStallLimit: time.Minute, Logger: n.log,
		Resolve: func(rowraft.NodeID) (string, error) { return "", errors.New("nobody is there") },
		Fatal:   func(err error) { t.Error(err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(n.closeReplicas(), n.store.Close()); err != nil {
			t.Error(err)
		}
	})
	return n
}

// follow gives n a map with one shard.
func follow(t *testing.T, n *Node, s clustermap.Shard) {
	t.Helper()
	m, err := clustermap.New(clustermap.Map{Version: 1, Shards: []clustermap.Shard{s}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.followReplicas(m); err != nil {
		t.Fatal(err)
	}
}

func (n *Node) running() rowraft.ReplicaID {
	if r := n.replica(0); r != nil {
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
	n := follower(t)
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
			follow(t, n, old.shard)
		}
		follow(t, n, step.shard)
		if got := n.running(); got != step.runs {
			t.Fatalf("after map %d, %+v: it runs %q, want %q", i, step.shard, got, step.runs)
		}
	}
	if !n.store.Removed("shard-0", "m1") || !n.store.Removed("shard-0", "m2") {
		t.Errorf("the store knows that m1 left: %v, that m2 left: %v", n.store.Removed("shard-0", "m1"), n.store.Removed("shard-0", "m2"))
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
		"a founder beside a learner":  {clustermap.Shard{Replicas: list("m", "a", "b"), Learners: list("c")}, true},
		"a learner":                   {clustermap.Shard{Replicas: list("a", "b", "c"), Learners: list("m")}, false},
		"a learner that became one":   {clustermap.Shard{Replicas: list("a", "b", "m", "c"), Changes: 1}, false},
		"a founder that starts later": {clustermap.Shard{Replicas: list("m", "a", "c"), Changes: 2}, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := follower(t)
			follow(t, n, tc.shard)
			if got := n.replica(0).group.Status().LastIndex > 0; got != tc.founds {
				t.Errorf("its log has an entry: %v, want %v", got, tc.founds)
			}
		})
	}
}

// A server was killed after it had recorded that a replica left, and before it deleted the data. The next
// look deletes them.
func TestDeletionIsFinished(t *testing.T) {
	n := follower(t)
	follow(t, n, clustermap.Shard{Replicas: list("m", "a", "b")})
	left := clustermap.Shard{Replicas: list("c", "a", "b"), Removed: removed("m"), Changes: 2}
	follow(t, n, left)
	dirs, err := filepath.Glob(filepath.Join(filepath.Join(n.cfg.DataDir, "raft"), "groups", "*"))
	if err != nil || len(dirs) != 0 {
		t.Fatalf("directories %v (%v), want none", dirs, err)
	}
	crumbs := filepath.Join(filepath.Join(n.cfg.DataDir, "raft"), "groups", "shard-0", "log")
	if err := os.MkdirAll(crumbs, 0o700); err != nil {
		t.Fatal(err)
	}
	follow(t, n, left)
	if _, err := os.Stat(crumbs); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a crash left is still there: %v", err)
	}
}
