package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/internal/cli"
)

func TestImportFlags(t *testing.T) {
	for _, tc := range []struct {
		args []string
		says string // "" if they are good
	}{
		{[]string{"--from", "x.npy"}, ""},
		{[]string{"--from", "x.npy", "--create", "--dim", "3", "--lr", "1"}, ""},
		{[]string{}, "--from is required"},
		{[]string{"--from", "x.npy", "--lr", "1"}, "--lr has no meaning without --create"},
		{[]string{"--from", "x.npy", "--storage", "bfloat16"}, "--storage has no meaning without --create"},
	} {
		var stderr bytes.Buffer
		code := run(t.Context(), append([]string{"table", "import", "t", "--insecure", "--endpoints", "127.0.0.1:1",
			"--timeout", "1ms"}, tc.args...), new(bytes.Buffer), &stderr)
		want := cli.ExitUsage
		if tc.says == "" {
			tc.says, want = "there is no file x.npy", cli.ExitFailed
		}
		if code != want || !strings.Contains(stderr.String(), tc.says) {
			t.Errorf("%v: exit code %d, %s; want %d and %q", tc.args, code, stderr.String(), want, tc.says)
		}
	}
}
