package main

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestDamageIsFoundBeforeItIsRestored flips one bit in each file of a checkpoint. Wrong names and destinations are
// refused.
func TestDamageIsFoundBeforeItIsRestored(t *testing.T) {
	c, dest := startLive(t, 2), t.TempDir()
	c.fill(300)
	m := c.createCheckpoint(dest, "a")
	before := c.digest()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	names := []string{"MANIFEST"}
	for _, f := range m.Files() {
		names = append(names, f.Name)
	}
	slices.Sort(names)
	for _, name := range names {
		file := filepath.Join(dest, "a", name)
		good, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		bad := slices.Clone(good)
		bit := rng.IntN(8 * len(bad))
		bad[bit/8] ^= 1 << (bit % 8)
		if err := os.WriteFile(file, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		// A manifest whose version reads as newer exits with 1.
		if got := c.run("checkpoint", "verify", dest+"/a"); got.code != 3 && got.code != 1 {
			t.Errorf("bit %d of %s: verify: %+v", bit, name, got)
		}
		if got := rowraftCmd(t, c.args("checkpoint", "restore", dest+"/a", "--replace", "--yes")...); got.code == 0 {
			t.Errorf("bit %d of %s: it was restored: %+v", bit, name, got)
		}
		if err := os.WriteFile(file, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if after := c.digest(); after != before {
		t.Error("a restore that was refused has changed rows")
	}
	c.restore(dest+"/a", "--replace")
	for _, tc := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{dest, "--name", "a"}, 1, "checkpoint a exists"},
		{[]string{dest, "--name", "../a"}, 2, "checkpoint name"},
		{[]string{"relative"}, 2, "absolute path"},
		{[]string{"s3://bucket/x"}, 2, "AWS_ACCESS_KEY_ID"},
		{[]string{filepath.Join(dest, "a", "MANIFEST")}, 1, "not a directory"},
	} {
		if got := c.run(append([]string{"checkpoint", "create"}, tc.args...)...); got.code != tc.code ||
			!strings.Contains(got.errout, tc.says) {
			t.Errorf("create %v: %+v; want %d and %q", tc.args, got, tc.code, tc.says)
		}
	}
}
