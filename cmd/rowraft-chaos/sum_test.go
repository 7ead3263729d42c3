package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/e2e/chaos"
	"github.com/rowraft/rowraft/e2e/nemesis"
	"github.com/rowraft/rowraft/internal/cli"
)

func TestSum(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, r result) string {
		path := filepath.Join(dir, name)
		if err := cli.WriteJSON(path, &r); err != nil {
			t.Fatal(err)
		}
		return path
	}
	a := write("a", result{Seconds: 60, Result: chaos.Result{Acks: 1000,
		Faults: map[string]nemesis.Count{"x": {Tried: 3, Observed: 2}, "y": {Tried: 1}}}})
	b := write("b", result{Seconds: 30, Virtual: 300, Result: chaos.Result{Acks: 2000,
		Faults: map[string]nemesis.Count{"x": {Tried: 1, Observed: 1}, "z": {Tried: 1, Observed: 1}}}})
	bad := write("bad", result{Config: chaos.Config{Tier: "B", Seed: 7},
		Result:    chaos.Result{Lost: 1, Problems: []string{"one lost"}},
		Reproduce: "rowraft-chaos run --seed 7"})
	idle := write("idle", result{Result: chaos.Result{Faults: map[string]nemesis.Count{"y": {Tried: 3}}}})
	for _, tc := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"two runs", []string{a, b}, cli.ExitDone,
			"2 runs, 90 s, 300 virtual: 4 faults of 2 kinds, 3,000 pushes acknowledged; 0 updates lost, 0 doubled, 0 shards " +
				"diverged, 0 violations"},
		{"a violation", []string{a, bad}, cli.ExitVerdict,
			"1 updates lost, 0 doubled, 0 shards diverged, 1 violations\nWRONG: tier B, seed 7: one lost\nagain: " +
				"rowraft-chaos run --seed 7"},
		{"a fault that does nothing",
			[]string{idle, idle}, cli.ExitVerdict, "WRONG: fault y was tried 6 times and never had an effect"},
		{"a fault that may have done nothing", []string{idle}, cli.ExitDone, "0 violations"},
		{"too few faults", []string{"--min-faults", "5", a, b}, cli.ExitVerdict, "too little happened"},
		{"too few kinds", []string{"--min-kinds", "3", a, b}, cli.ExitVerdict, "too little happened"},
		{"enough", []string{"--min-kinds", "2", "--min-faults", "4", a, b}, cli.ExitDone,
			"x                         4         3"},
		{"no such file", []string{filepath.Join(dir, "none")}, cli.ExitUsage, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, stdout, stderr := command(t, append([]string{"sum"}, tc.args...)...)
			if code != tc.code || !strings.Contains(stdout, tc.want) {
				t.Errorf("exit code %d, want %d; want %q in\n%s%s", code, tc.code, tc.want, stdout, stderr)
			}
		})
	}
}
