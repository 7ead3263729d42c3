package e2e

import (
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/internal/s3test"
)

// createDelta makes a delta to the newest checkpoint and returns its manifest.
func (c *cluster) createDelta(dest, name string) *checkpoint.Manifest {
	c.t.Helper()
	c.mustCreate(dest, name, "--delta")
	return openChain(c.t, dest, name).Manifest()
}

func openChain(t testing.TB, dest, name string) checkpoint.Chain {
	t.Helper()
	d, err := depot.Open(dest)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := depot.Chain(t.Context(), d, name)
	if err != nil {
		t.Fatal(err)
	}
	return chain
}

// TestAChainInABucket: the same over S3, from the first checkpoint to the last delete.
func TestAChainInABucket(t *testing.T) {
	s3test.Setenv(t, "bucket")
	const dest = "s3://bucket/ctr"
	c, _, _ := filled(t, localcluster.Options{Servers: 1, Shards: 2}, 300)
	c.createCheckpoint(dest, "a")
	table, err := c.dial(client.Options{}).Table(deadline(t, patience), "emb")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Push(deadline(t, patience), []rowraft.Key{1, 2, 3}, make([]float32, 24)); err != nil {
		t.Fatal(err)
	}
	if m := c.createDelta(dest, "b"); m.Written() != 3 {
		t.Errorf("the delta has %d rows, want 3", m.Written())
	}
	sum := c.digestOfAll()
	if code, out := verifies(t, dest+"/b"); code != 0 {
		t.Errorf("verify: exit code %d: %s", code, out)
	}
	other := start(t, localcluster.Options{Servers: 1, Shards: 3})
	other.mustRestore(dest + "/b")
	if got := other.digestOfAll(); got != sum {
		t.Errorf("the shards have digest %x, the source %x", got, sum)
	}
	if _, errout, code := c.patiently("checkpoint", "delete", dest+"/a"); code != 1 ||
		!strings.Contains(errout, "kept by deltas to it, which are nothing without it, or what is left of one: b:") {
		t.Errorf("delete what a delta needs: exit code %d: %s", code, errout)
	}
	if out, errout, code := c.patiently("checkpoint", "delete", dest+"/a", "--yes", "--cascade", "--timeout",
		patience.String()); code != 0 || len(listed(t, dest)) != 0 {
		t.Errorf("delete --cascade: exit code %d: %s%s", code, out, errout)
	}
}
