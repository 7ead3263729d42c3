package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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

// TestDeltasUnderLoad: deltas are cuts as full checkpoints are; one whose servers die
// is absent or whole; and the end of the chain is what the shards hold.
func TestDeltasUnderLoad(t *testing.T) {
	beforeRelease(t)
	c := start(t, localcluster.Options{})
	rng := seed(t)
	l := startLoad(c, rng, loadOptions{clients: 2, workers: 2, keys: 3000, perPush: 200})
	ch := startChain(c, "chain")
	l.more(20)
	dest := t.TempDir()
	c.createCheckpoint(dest, "full")
	for i := range 2 {
		l.more(10)
		name := fmt.Sprintf("d%d", i)
		m := c.createDelta(dest, name)
		if m.Parent == nil || m.Written() == 0 || m.Written() > m.Rows() {
			t.Errorf("%s: parent %v, %d of %d rows", name, m.Parent, m.Written(), m.Rows())
		}
		if code, out := verifies(t, dest+"/"+name); code != 0 {
			t.Errorf("verify %s: exit code %d: %s", name, code, out)
		}
		ch.check(t, savedRows(t, dest, name, "chain"))
	}
	const most = 20 // the calls of one round
	for round := range rounds(3) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range most {
				name := fmt.Sprintf("k%d-%d", round, i)
				_, errout, code := c.rowraft(context.Background(), "checkpoint", "create", dest, "--name", name, "--delta", "--timeout", "60s")
				t.Logf("%s: exit code %d: %s", name, code, errout)
				if code != 0 {
					return
				}
			}
		}()
		victim := c.Servers()[round%3]
		<-time.After(time.Duration(rng.IntN(600)) * time.Millisecond) //tidy:allow sleep any moment of one of them
		c.killAll([]*localcluster.Server{victim})
		<-done
		c.restartAll([]*localcluster.Server{victim})
		l.more(10)
	}
	ch.end(t)
	l.end()
	for name, state := range listed(t, dest) {
		if state == "complete" {
			if code, out := verifies(t, dest+"/"+name); code != 0 {
				t.Errorf("verify %s: exit code %d: %s", name, code, out)
			}
		} else if state != "incomplete" {
			t.Errorf("%s is %s", name, state)
		}
	}
	last := c.createDelta(dest, "last")
	sum := checkpoint.Digest{}
	for _, p := range last.Parts {
		sum = sum.Add(p.Digest)
	}
	if got := c.digestOfAll(); got != sum {
		t.Errorf("the shards have digest %x, the last of the chain %x", got, sum)
	}
	if code, out := verifies(t, dest+"/last"); code != 0 {
		t.Errorf("verify last: exit code %d: %s", code, out)
	}
	c.createCheckpoint(dest, "whole")
	if !maps.Equal(slotSums(t, dest, "last"), slotSums(t, dest, "whole")) {
		t.Error("slot by slot the last of the chain is not what a full one is")
	}
	l.compare(t, savedRows(t, dest, "last", counters)) // nothing that was acknowledged is missing
}

// chained starts a cluster with the checkpoint a and deltas b and c to it.
func chained(t testing.TB, opts localcluster.Options) (c *cluster, dest string) {
	t.Helper()
	c, dest, _ = filled(t, opts, 600)
	for i, name := range []string{"b", "c"} {
		table, err := c.dial(client.Options{}).Table(deadline(t, patience), "emb")
		if err != nil {
			t.Fatal(err)
		}
		keys := make([]rowraft.Key, 50)
		for k := range keys {
			keys[k] = rowraft.Key((k + 40*i) * 7919)
		}
		if _, err := table.Push(deadline(t, patience), keys, make([]float32, 8*len(keys))); err != nil {
			t.Fatal(err)
		}
		if m := c.createDelta(dest, name); m.Written() != 50 {
			t.Errorf("delta %s has %d rows, want the 50 that were pushed", name, m.Written())
		}
	}
	return c, dest
}

func TestRestoreOfAChain(t *testing.T) {
	beforeRelease(t)
	src, dest := chained(t, localcluster.Options{Servers: 1, Shards: 4})
	want, sum := slotSums(t, dest, "c"), src.digestOfAll()
	for _, shards := range []int{4, 16, 64} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			c := start(t, localcluster.Options{Servers: 1, Shards: shards})
			v := c.mustRestore(dest + "/c")
			for _, s := range v.Tables {
				if s.Written != 600 || s.Restored != 600 || s.Failed != 0 {
					t.Errorf("%+v, want 600 rows written and restored", s)
				}
			}
			if got := c.digestOfAll(); got != sum {
				t.Errorf("the shards have digest %x, the source %x", got, sum)
			}
			name := fmt.Sprintf("again-%d", shards)
			c.createCheckpoint(dest, name)
			if got := slotSums(t, dest, name); !maps.Equal(got, want) {
				t.Errorf("slot by slot the restored cluster differs from the chain: %d slots, want %d", len(got), len(want))
			}
		})
	}
	// What was restored is another state: no delta of it stands on what was before.
	src.mustRestore(dest+"/c", "--replace")
	_, errout, code := src.patiently("checkpoint", "create", dest, "--base", "c", "--name", "x")
	if code != 2 || !strings.Contains(errout, "table epoch 1") {
		t.Errorf("a delta to a base of an earlier epoch: exit code %d: %s", code, errout)
	}
	if out := src.mustCreate(dest, "x", "--delta"); !strings.Contains(out, "it is full: base c: it is of table epoch 1") {
		t.Errorf("a delta where none can be: %s", out)
	}
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
	if _, errout, code := c.patiently("checkpoint", "delete", dest+"/a"); code != 1 || !strings.Contains(errout, "kept by deltas to it, which are nothing without it, or what is left of one: b:") {
		t.Errorf("delete what a delta needs: exit code %d: %s", code, errout)
	}
	if out, errout, code := c.patiently("checkpoint", "delete", dest+"/a", "--yes", "--cascade", "--timeout", patience.String()); code != 0 || len(listed(t, dest)) != 0 {
		t.Errorf("delete --cascade: exit code %d: %s%s", code, out, errout)
	}
}

// TestDamageInAChainIsFound flips one bit in each file of a chain that is needed, and
// takes away what the delta stands on.
func TestDamageInAChainIsFound(t *testing.T) {
	beforeRelease(t)
	c, dest := chained(t, localcluster.Options{Servers: 1, Shards: 2})
	before, rng := c.digestOfAll(), seed(t)
	var files []string
	for _, l := range openChain(t, dest, "c") {
		files = append(files, filepath.Join(l.Name, "MANIFEST"))
		for _, f := range l.Manifest.Files() {
			files = append(files, filepath.Join(l.Name, f.Name))
		}
	}
	refused := func(what string, says string, codes ...int) {
		t.Helper()
		if code, out := verifies(t, dest+"/c"); !slices.Contains(codes, code) || !strings.Contains(out, says) {
			t.Errorf("%s: verify: exit code %d: %s", what, code, out)
		}
		if _, errout, code := c.patiently("checkpoint", "restore", dest+"/c", "--replace", "--yes"); code == 0 || !strings.Contains(errout, says) {
			t.Errorf("%s: it was restored, exit code %d: %s", what, code, errout)
		}
	}
	for _, name := range files {
		damage(t, rng, filepath.Join(dest, name), func(bit int) {
			refused(fmt.Sprintf("bit %d of %s", bit, name), "", 1, 3) // a version that reads as newer exits with 1
		})
	}
	for _, base := range []string{"a", "b"} {
		aside := filepath.Join(t.TempDir(), "aside")
		if err := os.Rename(filepath.Join(dest, base), aside); err != nil {
			t.Fatal(err)
		}
		refused(base+" is missing", "is a delta to "+base+", which is missing", 1)
		if got := listed(t, dest); got["c"] != "broken" {
			t.Errorf("%s is missing, and the list says %v", base, got)
		}
		if err := os.Rename(aside, filepath.Join(dest, base)); err != nil {
			t.Fatal(err)
		}
	}
	if _, errout, code := c.patiently("checkpoint", "delete", dest+"/a"); code != 1 || !strings.Contains(errout, "kept by deltas to it") {
		t.Errorf("delete what a delta needs: exit code %d: %s", code, errout)
	}
	if after := c.digestOfAll(); after != before {
		t.Error("a restore that was refused has changed rows")
	}
	c.mustRestore(dest+"/c", "--replace")
	if after := c.digestOfAll(); after != before {
		t.Error("the chain is not what was saved")
	}
	out, errout, code := c.patiently("checkpoint", "delete", dest+"/a", "--yes", "--cascade", "--timeout", patience.String()) // a second try would say less
	if code != 0 || !strings.Contains(out, "c, b, a") || len(listed(t, dest)) != 0 {
		t.Errorf("delete --cascade: exit code %d: %s%s", code, out, errout)
	}
}

// damage flips one bit of a file while f runs.
func damage(t testing.TB, rng *rand.Rand, file string, f func(bit int)) {
	t.Helper()
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	bad, bit := slices.Clone(good), rng.IntN(8*len(good))
	bad[bit/8] ^= 1 << (bit % 8)
	if err := os.WriteFile(file, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	f(bit)
	if err := os.WriteFile(file, good, 0o600); err != nil {
		t.Fatal(err)
	}
}
