package main

import (
	"strings"
	"testing"

	"github.com/rowraft/rowraft/internal/cli"
)

// Each promise is one that a result can break.
func TestOverloadVerdict(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(*overloadResult)
		want  string // part of the error; "": passes
	}{
		{"as promised", func(*overloadResult) {}, ""},
		{"a new leader", func(r *overloadResult) { r.LeaderChanges = 1 }, "1 leader changes"},
		{"a lost push", func(r *overloadResult) { r.Applied-- }, "99 pushes were applied, 100 acknowledged"},
		{"a push applied twice", func(r *overloadResult) { r.Applied++ }, "101 pushes were applied"},
		{"memory", func(r *overloadResult) { r.Memory = r.MemoryLimit + 1 }, "of memory"},
		{"slow to recover", func(r *overloadResult) { r.Recovered = 10.1 }, "recovered after 10.1 s"},
		{"a starved client", func(r *overloadResult) { r.Modest[1].Loaded = 0 }, "modest client 2 was served 0 times"},
		{"a client with an error", func(r *overloadResult) { r.Modest[0].FirstErr = "lost" },
			"modest client 1 was served 5 times: lost"},
		{"too little load", func(r *overloadResult) { r.Factor = 9.9 }, "9.9 times"},
	} {
		r := &overloadResult{Factor: 10, Applied: 100, Acknowledged: 100, Memory: 1 << 20, MemoryLimit: 1 << 20,
			Recovered: 10, Modest: []overloadModestResult{{Loaded: 5}, {Loaded: 5}}}
		tc.spoil(r)
		r.judge()
		err := r.Verdict("overload")
		verdict := cli.ExitCode(t.Context(), err) == cli.ExitVerdict
		if r.Passed != (tc.want == "") || verdict == r.Passed || tc.want != "" &&
			(len(r.Failed) != 1 || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: passed: %v, %v, want %q", tc.name, r.Passed, err, tc.want)
		}
		var b strings.Builder
		if err := r.Print(&b); err != nil || !strings.Contains(b.String(), tc.want) {
			t.Errorf("%s: printed without %q: %v\n%s", tc.name, tc.want, err, b.String())
		}
	}
}
