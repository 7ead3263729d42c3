package main

import (
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/s3test"
	"github.com/rowraft/rowraft/internal/testutil"
)

// TestAChainInABucket makes, verifies, restores and deletes a checkpoint and a delta to it in a bucket.
func TestAChainInABucket(t *testing.T) {
	s3test.Setenv(t, "bucket")
	const dest = "s3://bucket/ctr"
	c := startLive(t, 2)
	c.fill(300)
	c.createCheckpoint(dest, "a")
	ctx := testutil.Context(t)
	table, err := c.dial().Table(ctx, "emb")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Push(ctx, []rowraft.Key{1, 2, 3}, make([]float32, 24)); err != nil {
		t.Fatal(err)
	}
	if m := c.createCheckpoint(dest, "b", "--delta"); m.Written() != 3 {
		t.Errorf("the delta has %d rows, want 3", m.Written())
	}
	sum := c.digest()
	c.must("checkpoint", "verify", dest+"/b")
	other := startLive(t, 3)
	other.restore(dest + "/b")
	if got := other.digest(); got != sum {
		t.Errorf("the shards have digest %x, the source %x", got, sum)
	}
	if got := c.run("checkpoint", "delete", dest+"/a"); got.code != 1 ||
		!strings.Contains(got.errout, "kept by deltas to it, which are nothing without it, or what is left of one: b:") {
		t.Errorf("delete what a delta needs: %+v", got)
	}
	c.must("checkpoint", "delete", dest+"/a", "--yes", "--cascade")
	if left := c.must("checkpoint", "list", dest, "-o", "json"); strings.Contains(left, `"name"`) {
		t.Errorf("after delete --cascade there is %s", left)
	}
}
