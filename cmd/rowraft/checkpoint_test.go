package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft/internal/cli"
)

// TestCheckpointsWithoutACluster lists, verifies and deletes what lies in a
// directory; e2e makes checkpoints that are whole.
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
		"a/MANIFEST": manifest, "a/shard-0000.sums": []byte("rubbish"), "b/shard-0000.rows": []byte("12"), "c/MANIFEST": manifest[:100],
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
		{"list", []string{"list", dir}, cli.ExitDone, []string{"a ", "complete", "b ", "incomplete", "c ", "unreadable", "2026-11-21T06:00:00Z"}},
		{"list of a delta", []string{"list", dir}, cli.ExitDone, []string{"full", "delta", "nightly-1", "broken"}},
		{"list of a delta as JSON", []string{"list", dir, "-o", "json"}, cli.ExitDone, []string{`"kind": "delta"`, `"parent": "nightly-1"`, `"state": "broken"`, `"written": 1`, "which is missing"}},
		{"verify a delta without its parent", []string{"verify", dir + "/d"}, cli.ExitFailed, []string{"checkpoint d is a delta to nightly-1, which is missing"}},
		{"delete what a delta needs", []string{"delete", dir + "/f"}, cli.ExitFailed, []string{"checkpoint f is kept by deltas to it", ": g:"}},
		{"delete it with the delta, dry", []string{"delete", dir + "/f", "--cascade", "--dry-run"}, cli.ExitDone, []string{"would delete checkpoint g, f: 2 files"}},
		{"delete it with the delta", []string{"delete", dir + "/f", "--cascade", "--yes", "-o", "json"}, cli.ExitDone, []string{`"deleted": true`, `"g"`}},
		{"list as JSON", []string{"list", dir, "-o", "json"}, cli.ExitDone, []string{`"state": "unreadable"`, `"rows": 3`, `"held_ms": 41`, `"trainer/ctr/0"`}},
		{"a relative destination", []string{"list", "x"}, cli.ExitUsage, []string{"absolute path"}},
		{"verify damage", []string{"verify", dir + "/a"}, cli.ExitVerdict, []string{"shard-0000.sums", "7 bytes"}},
		{"verify a damaged manifest", []string{"verify", dir + "/c"}, cli.ExitVerdict, []string{"manifest"}},
		{"verify what is none", []string{"verify", dir + "/b"}, cli.ExitFailed, []string{"there is no b/MANIFEST"}},
		{"delete, dry", []string{"delete", dir + "/a", "--dry-run"}, cli.ExitDone, []string{"would delete checkpoint a: 3 files"}},
		{"delete", []string{"delete", dir + "/a", "--yes"}, cli.ExitDone, []string{"deleted checkpoint a: 3 files"}},
		{"delete again", []string{"delete", dir + "/a"}, cli.ExitFailed, []string{"no checkpoint a"}},
		{"delete what is none", []string{"delete", dir + "/b", "--yes", "-o", "json"}, cli.ExitDone, []string{`"deleted": true`}},
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

// TestMeterOffATerminal: people get a line now and then, programs an event.
func TestMeterOffATerminal(t *testing.T) {
	synctest.Test(t, meterOffATerminal) // or it would tell of the time that the test takes
}

func meterOffATerminal(t *testing.T) {
	for _, events := range []bool{false, true} {
		var out strings.Builder
		m := newMeter(&out, "read", events)
		m.set(1<<20, 4<<20)
		if out.Len() > 0 {
			t.Errorf("it says at once: %s", out.String())
		}
		m.started = m.started.Add(-10 * time.Second)
		m.nextLine.Store(0)
		m.set(1<<20, 4<<20)
		m.set(2<<20, 4<<20) // too early for the next one
		m.phase("close")
		m.done()
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if !events {
			if len(lines) != 1 || !strings.HasPrefix(lines[0], "read: 1.0 MiB of 4.0 MiB  10") || !strings.HasSuffix(lines[0], "KiB/s  30s left") {
				t.Errorf("lines %q", lines)
			}
			continue
		}
		var first, second progressJSON
		if len(lines) != 2 || json.Unmarshal([]byte(lines[0]), &first) != nil || json.Unmarshal([]byte(lines[1]), &second) != nil {
			t.Fatalf("lines %q", lines)
		}
		p := first.Progress
		if p.Phase != "read" || p.Bytes != 1<<20 || p.BytesTotal != 4<<20 || p.Left == nil || *p.Left < 29 || *p.Left > 31 || p.Rate < 1e5 || second.Progress.Phase != "close" {
			t.Errorf("events %q", lines)
		}
	}
}
