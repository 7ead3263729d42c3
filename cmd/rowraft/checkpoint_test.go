package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckpointsWithoutACluster lists, verifies and deletes what lies in a
// directory; e2e makes checkpoints that are whole.
func TestCheckpointsWithoutACluster(t *testing.T) {
	manifest, err := os.ReadFile("../../checkpoint/testdata/manifest.txt")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, b := range map[string][]byte{"a/MANIFEST": manifest, "a/shard-0000.sums": []byte("rubbish"), "b/shard-0000.rows": []byte("12"), "c/MANIFEST": manifest[:100]} {
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
		{"list", []string{"list", dir}, exitDone, []string{"a ", "complete", "b ", "incomplete", "c ", "unreadable", "2026-11-21T06:00:00Z"}},
		{"list as JSON", []string{"list", dir, "-o", "json"}, exitDone, []string{`"state": "unreadable"`, `"rows": 3`, `"held_ms": 41`, `"trainer/ctr/0"`}},
		{"a relative destination", []string{"list", "x"}, exitUsage, []string{"absolute path"}},
		{"verify damage", []string{"verify", dir + "/a"}, exitVerdict, []string{"shard-0000.sums", "7 bytes"}},
		{"verify a damaged manifest", []string{"verify", dir + "/c"}, exitVerdict, []string{"manifest"}},
		{"verify what is none", []string{"verify", dir + "/b"}, exitFailed, []string{"there is no b/MANIFEST"}},
		{"delete, dry", []string{"delete", dir + "/a", "--dry-run"}, exitDone, []string{"would delete checkpoint a: 2 files"}},
		{"delete", []string{"delete", dir + "/a"}, exitDone, []string{"deleted checkpoint a: 2 files"}},
		{"delete again", []string{"delete", dir + "/a"}, exitFailed, []string{"no checkpoint a"}},
		{"delete what is none", []string{"delete", dir + "/b", "-o", "json"}, exitDone, []string{`"deleted": true`}},
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
