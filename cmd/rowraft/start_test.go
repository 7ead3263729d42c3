package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/localcluster"
)

// TestAStartEndsAfterItsTimeout: a server or a scheduler that waits for the others ends after its timeout and names
// what is missing. cmd/rowraft-trainer has the same test for workers.
func TestAStartEndsAfterItsTimeout(t *testing.T) {
	var addrs []string
	for range 2 {
		p, err := localcluster.ReservePort() // no other process listens there
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Release() })
		addrs = append(addrs, p.Addr)
	}
	list := "--role server --workers 1 --server-list " + strings.Join(addrs, ",")
	for _, tc := range []struct {
		name, args, says string
		early            []string // said by a process that had too little time, as on a busy machine
	}{
		{"a listed server", list + " --listen " + addrs[1], "it waits for answers from " + addrs[0],
			[]string{"it waits for answers from " + addrs[1]}}, // it has not reached itself
		{"a server", "--role server --servers 2 --workers 1 --scheduler " + addrs[0],
			"it waits for answers from " + addrs[0], nil},
		{"the scheduler", "--role scheduler --servers 2 --workers 1 --scheduler " + addrs[0],
			"0 of 2 servers have registered", []string{"it waits for answers from"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got outcome
			for _, timeout := range []string{"3s", "20s", "1m0s", "3m0s"} {
				got = rowraftCmd(t, append(strings.Fields("start --insecure --profile fast --disk-stall-limit 60s "+tc.args),
					"--data-root", t.TempDir(), "--start-timeout", timeout)...)
				if !slices.ContainsFunc(append(tc.early, "it has just begun", "has no leader at present"),
					func(s string) bool { return strings.Contains(got.errout, s) }) {
					want := "the cluster has not started within " + timeout + ": " + tc.says
					if got.code != cli.ExitUnavailable || !strings.Contains(got.errout, want) {
						t.Errorf("%+v, want exit code %d and %q", got, cli.ExitUnavailable, want)
					}
					return
				}
				t.Logf("%s was too short: %s", timeout, got.errout)
			}
			t.Errorf("%+v, want %q", got, tc.says)
		})
	}
}
