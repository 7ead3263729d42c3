package node

import (
	"github.com/rowraft/rowraft/internal/testutil"

	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// TestARolledBackServerIsRefused: the test copies the data directory of a stopped server, lets the server
// run on, and puts the copy back. The cluster refuses and names its replicas and its member of the
// scheduler, no acknowledged push is lost, and the replicas are rebuilt.
func TestARolledBackServerIsRefused(t *testing.T) {
	c := startProofClusterWith(t, 3, func(cfg *Config) { cfg.ReplaceAfter = 2 * time.Second })
	c.push()
	const name = "n3"
	i, dir := c.byNode[name], filepath.Join(c.dir, name)
	kept := filepath.Join(t.TempDir(), "copy")
	c.stopNode(i)
	if err := os.CopyFS(kept, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	c.restart(i)
	for range 5 {
		c.push()
	}
	before := c.replicas()[name].GetReplicaId()
	c.stopNode(i)
	//tidy:allow sleep a process that ended a moment ago would be taken for one that still runs
	time.Sleep(time.Second)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(dir, os.DirFS(kept)); err != nil {
		t.Fatal(err)
	}
	c.restart(i)
	found := func(kind string) bool {
		return slices.ContainsFunc(c.status(c.ctx).Findings, func(p *rowraftv1.Problem) bool { return p.Kind == kind })
	}
	testutil.Eventually(t, "the member of the scheduler is named", func() bool {
		return found("scheduler-member-rolled-back")
	})
	testutil.Eventually(t, "the replica is named, or replaced already", func() bool {
		c.push()
		return found("replica-rolled-back") || c.replicas()[name].GetReplicaId() != before
	})
	c.wantRow()
	testutil.Eventually(t, "the replica is rebuilt in its place", func() bool {
		c.push()
		r := c.replicas()[name]
		return r.GetReplicaId() != "" && r.GetReplicaId() != before && r.GetFenced() == "" && !found("replica-rolled-back")
	})
	c.push()
	c.wantRow()
	c.sameDigests(c.ctx, 0)
	// The server restarts with its current data, and the result is the same.
	c.stopNode(i)
	c.restart(i)
	c.push()
	c.wantRow()
	testutil.Eventually(t, "the member of the scheduler is named again", func() bool {
		return found("scheduler-member-rolled-back")
	})
	if found("replica-rolled-back") {
		t.Errorf("after another restart: %v", c.status(c.ctx).Problems)
	}
}
