package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTrainersWriteCheckpointsWhereTheyMay: with certificates, a job whose trainer is limited to
// some tables makes no checkpoint, one of all tables makes them where the servers allow it, and an
// operator makes them anywhere. What is refused is refused before the training, and says why.
func TestTrainersWriteCheckpointsWhereTheyMay(t *testing.T) {
	needBinaries(t)
	lab := newCertificates(t, "lab")
	lab.rowraft("server", "--name", "server")
	lab.rowraft("client", "--role", "operator", "--name", "olga")
	lab.rowraft("client", "--role", "trainer", "--name", "full", "--tables", "*")
	limited := lab.trainer("kept")
	dir := t.TempDir()
	ready, allowed, elsewhere := filepath.Join(dir, "ready"), filepath.Join(dir, "ckpt"), filepath.Join(dir, "ckpt2")
	spawn(t, "rowraft", append(lab.flags("server"), "server", "--with-scheduler", "--servers", "1", "--shards", "1",
		"--data-dir", filepath.Join(dir, "n1"), "--checkpoint-destination", allowed,
		"--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0", "--ready-file", ready, "--profile", "fast",
		"--disk-stall-limit", "60s")...)
	says(t, ready, "}")
	var at struct {
		Addr string `json:"addr"`
	}
	readJSON(t, ready, &at)
	train := func(job, checkpoint string, flags []string) *running {
		t.Helper()
		file := filepath.Join(t.TempDir(), "job.yaml")
		if err := os.WriteFile(file, fmt.Appendf(nil, `job: %s
mode: async
trainers: 1
lease: 1m
steps: 20
batch: 16
evaluate: false
generator: {examples: 0, held: 0, keys: 400, categorical: 4, dense: 3}
model: {dim: 8, bottom: [8], top: [8]}
checkpoint: %s
`, job, checkpoint), 0o600); err != nil {
			t.Fatal(err)
		}
		return spawn(t, "rowraft-trainer", append([]string{"train", "--config", file, "--endpoints", at.Addr, "--patience",
			"1m", "--device", "cpu", "--progress", "none"}, flags...)...)
	}
	operate := func(who string, args ...string) *running {
		return spawn(t, "rowraft", append(append(args, "--endpoints", at.Addr), lab.flags(who)...)...)
	}
	for _, tc := range []struct {
		name string
		run  func() *running
		says []string // nil: it succeeds
	}{
		{"a limited trainer at its end", func() *running {
			return train("kept",
				fmt.Sprintf("{to: %s, at_end: true}", allowed), limited)
		}, []string{allowed, "all tables", "kept.*"}},
		{"a limited trainer's policy", func() *running {
			return train("kept", fmt.Sprintf("{to: %s, every: 1s}", allowed),
				limited)
		}, []string{allowed, "all tables", "kept.*"}},
		{"a limited trainer without checkpoints", func() *running { return train("kept", "{}", limited) }, nil},
		{"a trainer of all tables elsewhere", func() *running {
			return train("full", fmt.Sprintf("{to: %s, on_stop: true}", elsewhere), lab.flags("full"))
		}, []string{elsewhere, allowed, "--checkpoint-destination"}},
		{"its policy elsewhere", func() *running {
			return train("full", fmt.Sprintf("{to: %s, every: 1s}", elsewhere), lab.flags("full"))
		}, []string{elsewhere, allowed, "--checkpoint-destination"}},
		{"a trainer of all tables", func() *running {
			return train("full", fmt.Sprintf("{to: %s/full, every: 1s, at_end: true}", allowed), lab.flags("full"))
		}, nil},
		{"a trainer by hand", func() *running { return operate("full", "checkpoint", "create", allowed, "--name", "hand") },
			[]string{"operator", "trainer full"}},
		{"an operator elsewhere", func() *running {
			return operate("olga", "checkpoint", "create", elsewhere, "--name",
				"hand")
		}, nil},
		{"a trainer's restore", func() *running {
			return operate("full", "checkpoint", "restore", elsewhere+"/hand", "--replace", "--yes")
		}, []string{"admin", "trainer full"}},
		{"a trainer's policy by hand, for all jobs", func() *running {
			return operate("full", "checkpoint", "policy", "set", "p", "--to", allowed, "--every", "1h")
		}, []string{"operator", "trainer full", "names no job"}},
		{"an operator's policy for the limited job", func() *running {
			return operate("olga", "checkpoint", "policy", "set", "kept", "--to", elsewhere, "--every", "1h", "--job", "kept")
		}, nil},
	} {
		if tc.says == nil {
			if p := tc.run(); p.code(t, patience) != 0 {
				t.Errorf("%s: it fails: %s", tc.name, &p.stderr)
			}
			continue
		}
		p := tc.run()
		if p.code(t, patience) == 0 {
			t.Errorf("%s: it succeeds: %s%s", tc.name, &p.stdout, &p.stderr)
		}
		for _, part := range tc.says {
			if !strings.Contains(p.stderr.String(), part) {
				t.Errorf("%s: %q does not name %s", tc.name, p.stderr.String(), part)
			}
		}
	}
	for where, want := range map[string]int{allowed + "/full/full-end-*/MANIFEST": 1, elsewhere + "/*/MANIFEST": 1,
		elsewhere + "/hand/MANIFEST": 1, allowed + "/*/MANIFEST": 0} {
		if got, err := filepath.Glob(where); err != nil || len(got) != want {
			t.Errorf("%s: %v (%v), want %d", where, got, err, want)
		}
	}
}
