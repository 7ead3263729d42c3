package raftstore

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/raftstore/raftlog"
)

// testOwner is the owner of logs and snapshots of tests.
var testOwner = raftlog.Owner{Cluster: "c-test", Node: "n1", Group: "shard-0", Replica: "r-shard-0"}

// Two groups of a server whose logs or snapshots were exchanged do not start, and their files do not change: after they
// are exchanged back, the groups serve.
func TestGroupsWithExchangedLogsDoNotStart(t *testing.T) {
	for _, tc := range [][2]string{{raftlog.Row, "log"}, {raftlog.Bolt, "log"}, {raftlog.Row, "snapshots"}} {
		backend, what := tc[0], tc[1]
		t.Run(backend+" "+what, func(t *testing.T) {
			c := startedCluster(t, 1, func(o *Options) { o.Backend = backend })
			n := c.nodes[0]
			other := GroupConfig{ID: "shard-1", Replica: "r-shard-1", Machine: &listMachine{},
				Bootstrap: []Member{{"r-shard-1", n.id}}}
			second, err := n.store.StartGroup(other)
			if err != nil {
				t.Fatal(err)
			}
			last := c.propose("acknowledged")
			testutil.Eventually(t, "the other group takes an entry", func() bool {
				_, _, err := second.Propose([]byte("x")).Wait(testutil.Context(t))
				return err == nil
			})
			if err := errors.Join(n.group.Snapshot(), second.Snapshot()); err != nil {
				t.Fatal(err)
			}
			exchange := func() {
				t.Helper()
				groups := filepath.Join(n.dir, "raft", "groups")
				a, b, tmp := filepath.Join(groups, "shard-0", what), filepath.Join(groups, "shard-1", what),
					filepath.Join(n.dir, "aside")
				if err := errors.Join(os.Rename(a, tmp), os.Rename(b, a), os.Rename(tmp, b)); err != nil {
					t.Fatal(err)
				}
			}
			c.stop(n)
			exchange()
			one := raftlog.Owner{Cluster: testCluID, Node: n.id, Group: "shard-0", Replica: replicaOf(n.id)}.String()
			two := raftlog.Owner{Cluster: testCluID, Node: n.id, Group: "shard-1", Replica: "r-shard-1"}.String()
			testutil.WantCode(t, c.tryStart(n), rowraft.CodeIdentity, one, two)
			_, err = n.store.StartGroup(other)
			testutil.WantCode(t, err, rowraft.CodeIdentity, one, two)
			c.stop(n)
			exchange()
			c.start(n)
			c.converged(max(last, c.propose("again")))
		})
	}
}
