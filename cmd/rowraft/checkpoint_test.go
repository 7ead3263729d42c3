package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/internal/cli"
)

// TestCheckpointsWithoutACluster lists, verifies and deletes the checkpoints in a directory.
// TestDamageIsFoundBeforeItIsRestored makes whole ones.
func TestCheckpointsWithoutACluster(t *testing.T) {
	manifest, err := os.ReadFile("../../checkpoint/testdata/manifest.txt")
	if err != nil {
		t.Fatal(err)
	}
	delta, err := os.ReadFile("../../checkpoint/testdata/manifest-delta.txt")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, b := range map[string][]byte{
		"d/MANIFEST": delta, "f/DELTA-g-00112233": []byte("x"), "f/MANIFEST": manifest,
		"a/MANIFEST": manifest, "a/shard-0000.sums": []byte("rubbish"), "b/shard-0000.rows": []byte("12"),
		"c/MANIFEST": manifest[:100],
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name string
		args []string
		code int
		says []string
	}{
		{"list", []string{"list", dir}, cli.ExitDone, []string{"a ", "complete", "b ", "incomplete", "c ", "unreadable",
			"2026-11-21T06:00:00Z"}},
		{"list of a delta", []string{"list", dir, "-o", "wide"}, cli.ExitDone,
			[]string{"full", "delta", "nightly-1", "broken"}},
		{"list of a delta as JSON", []string{"list", dir, "-o", "json"}, cli.ExitDone,
			[]string{`"kind": "delta"`, `"parent": "nightly-1"`, `"state": "broken"`, `"written": 1`, "which is missing"}},
		{"verify a delta without its parent", []string{"verify", dir + "/d"}, cli.ExitFailed,
			[]string{"checkpoint d is a delta to nightly-1, which is missing"}},
		{"delete what a delta needs", []string{"delete", dir + "/f"}, cli.ExitFailed,
			[]string{"checkpoint f is kept by deltas to it", ": g:"}},
		{"delete it with the delta, dry", []string{"delete", dir + "/f", "--cascade", "--dry-run"}, cli.ExitDone,
			[]string{"would delete checkpoint g, f: 2 files"}},
		{"delete it with the delta", []string{"delete", dir + "/f", "--cascade", "--yes", "-o", "json"}, cli.ExitDone,
			[]string{`"deleted": true`, `"g"`}},
		{"list as JSON", []string{"list", dir, "-o", "json"}, cli.ExitDone,
			[]string{`"state": "unreadable"`, `"rows": 3`, `"held_ms": 41`, `"trainer/ctr/0"`}},
		{"a relative destination", []string{"list", "x"}, cli.ExitUsage, []string{"absolute path"}},
		{"verify damage", []string{"verify", dir + "/a"}, cli.ExitVerdict, []string{"shard-0000.sums", "7 bytes"}},
		{"verify a damaged manifest", []string{"verify", dir + "/c"}, cli.ExitVerdict, []string{"manifest"}},
		{"verify what is none", []string{"verify", dir + "/b"}, cli.ExitFailed, []string{
			"it is no checkpoint: there is no b/MANIFEST"}},
		{"delete, dry", []string{"delete", dir + "/a", "--dry-run"}, cli.ExitDone,
			[]string{"would delete checkpoint a: 3 files"}},
		{"delete", []string{"delete", dir + "/a", "--yes"}, cli.ExitDone, []string{"deleted checkpoint a: 3 files"}},
		{"delete again", []string{"delete", dir + "/a"}, cli.ExitFailed, []string{"no checkpoint a"}},
		{"delete what is none", []string{"delete", dir + "/b", "--yes", "-o", "json"}, cli.ExitDone,
			[]string{`"deleted": true`}},
	} {
		got := rowraftCmd(t, append([]string{"checkpoint"}, tc.args...)...)
		if got.code != tc.code {
			t.Errorf("%s: exit code %d, want %d: %s", tc.name, got.code, tc.code, got.errout)
		}
		for _, s := range tc.says {
			if !strings.Contains(got.out+got.errout, s) {
				t.Errorf("%s: it does not say %q:\n%s%s", tc.name, s, got.out, got.errout)
			}
		}
	}
}
