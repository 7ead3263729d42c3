package main

import (
	"strings"
	"testing"

	"github.com/rowraft/rowraft/internal/cli"
)

// TestCompletion: a shell is offered commands, flags, and the names that the cluster has.
func TestCompletion(t *testing.T) {
	addr := start(t, &fakeCluster{status: leaving()})
	at := "--insecure --endpoints " + addr
	for _, tc := range []struct {
		line string // the last word is being typed
		want string
	}{
		{"shard desc", "describe"},
		{"cluster status --end", "--endpoints"},
		{"cluster status -o ", "yaml"},
		{"completion ", "fish"},
		{"shard describe " + at + " ", "1\tled by n2"},
		{"shard digest 0 " + at + " ", "1\tled by n2"},
		{"shard move 0 " + at + " --to ", "n4\tup"},
		{"shard list " + at + " --table ", "user_emb"},
		{"server drain " + at + " ", "n3\tdown"},
		{"table describe " + at + " ", "weights"},
		{"row get " + at + " ", "user_emb"},
		{"job describe " + at + " ", "ctr"},
		{"operation watch " + at + " ", "4\treplace n3"},
	} {
		words := strings.Split(tc.line, " ")
		got := rowraftCmd(t, append([]string{"__complete"}, words...)...)
		found := false
		for line := range strings.Lines(got.out) {
			found = found || strings.HasPrefix(line, tc.want)
		}
		if got.code != cli.ExitDone || !found {
			t.Errorf("rowraft %s<TAB>: code %d, want %q among\n%s", tc.line, got.code, tc.want, got.out)
		}
	}
	got := rowraftCmd(t, "__complete", "shard", "describe", "--insecure", "--endpoints", unusedAddr(t), "")
	if got.code != cli.ExitDone || !strings.HasPrefix(got.out, ":") {
		t.Errorf("without a cluster: %+v, want no name", got)
	}
	for _, shell := range shells {
		if got := rowraftCmd(t, "completion", shell); got.code != cli.ExitDone || !strings.Contains(got.out, "rowraft") ||
			got.errout != "" {
			t.Errorf("completion %s: code %d, %d bytes, stderr %q", shell, got.code, len(got.out), got.errout)
		}
	}
	if got := rowraftCmd(t, "completion", "bsh"); got.code != cli.ExitUsage ||
		!strings.Contains(got.errout, `did you mean "bash"`) {
		t.Errorf("%+v", got)
	}
}
