package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/table"
	"github.com/rowraft/rowraft/internal/cli"
)

// checkRowModes sets a row of table t, of dim 4, and reads it in every mode.
func checkRowModes(t *testing.T, addr string) {
	t.Helper()
	at := []string{"--insecure", "--endpoints", addr}
	if got := rowraftCmd(t, append([]string{"row", "set", "t", "11", "0xc", "--weights", "0.5,-0.25,0,1"},
		at...)...); got.code != cli.ExitDone || !strings.Contains(got.out, "table t: 2 keys set") {
		t.Errorf("row set: %+v", got)
	}
	for _, mode := range []string{"leader", "linearizable", "bounded"} {
		args := append([]string{"row", "get", "t", "11", "12", "--mode", mode, "-o", "json"}, at...)
		if mode == "bounded" {
			args = append(args, "--max-age", "1h", "--max-lag", "1000")
		}
		got := rowraftCmd(t, args...)
		// A replica gives up after 300 ms.
		for deadline := t.Context(); got.code == cli.ExitUnavailable && mode == "bounded" && deadline.Err() == nil; {
			got = rowraftCmd(t, args...)
		}
		var r table.Rows
		if err := json.Unmarshal([]byte(got.out), &r); err != nil || got.code != cli.ExitDone || len(r.Rows) != 2 {
			t.Errorf("--mode %s: %+v, %v", mode, got, err)
			continue
		}
		if r.Mode != mode || (r.AgeSeconds != nil) != (mode == "bounded") || r.AgeSeconds != nil &&
			(*r.AgeSeconds <= 0 || *r.AgeSeconds > 3600) {
			t.Errorf("--mode %s says %+v", mode, r)
		}
		if mode != "bounded" && !slices.Equal(r.Rows[1].Weights, []float32{0.5, -0.25, 0, 1}) {
			t.Errorf("--mode %s: %+v", mode, r.Rows)
		}
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"row", "get", "t", "1", "--mode", "any"}, "want leader, linearizable or bounded"},
		{[]string{"row", "get", "t", "1", "--max-age", "1s"}, "for --mode bounded"},
		{[]string{"row", "get", "t", "1", "--mode", "bounded", "--max-age", "0s"}, "want more than 0"},
		{[]string{"row", "set", "t", "1"}, "give --weights"},
		{[]string{"row", "set", "t", "1", "--weights", "1,2"}, "2 numbers, a row of table t has 4"},
		{[]string{"row", "set", "t", "--weights", "1,2"}, "one key or more"},
	} {
		if got := rowraftCmd(t, append(tc.args, at...)...); got.code != cli.ExitUsage ||
			!strings.Contains(got.errout, tc.want) {
			t.Errorf("%v: %+v, want %q", tc.args, got, tc.want)
		}
	}
}
