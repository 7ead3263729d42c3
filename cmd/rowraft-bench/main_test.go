package main

import (
	"strings"
	"testing"

	"github.com/rowraft/rowraft/internal/cli"
)

// A benchmark with a wrong flag starts no servers.
func TestBenchRefusesBeforeItStartsServers(t *testing.T) {
	for _, tc := range []struct{ flag, value string }{{"--dtype", "float16"}, {"--optimizer", "lamb"},
		{"--keys", "normal"}, {"--dim", "0"}, {"--tables", "0"}} {
		var stderr strings.Builder
		code := cli.Run(t.Context(), newRoot(), []string{"pull", tc.flag, tc.value}, &stderr, &stderr)
		if got := stderr.String(); code != cli.ExitUsage || !strings.Contains(got, tc.value) ||
			strings.Contains(got, "starting") {
			t.Errorf("%s %s: code %d, %q, want %d and no servers", tc.flag, tc.value, code, got, cli.ExitUsage)
		}
	}
}
