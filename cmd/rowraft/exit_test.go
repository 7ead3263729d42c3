package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
)

// TestExitCodes: each exit code of rowraft's help is what a command ends with.
func TestExitCodes(t *testing.T) {
	addr := start(t, &fakeCluster{status: sample()})
	help := rowraftCmd(t, "--help").out
	for _, tc := range []struct {
		code int
		args []string
	}{
		{exitDone, []string{"table", "list"}},
		{exitFailed, []string{"table", "describe", "nothing"}},
		{exitUsage, []string{"table", "describe"}},
		{exitVerdict, []string{"cluster", "status"}},
		{exitUnavailable, []string{"table", "list"}},
		{exitRefused, []string{"node", "drain", "n2"}},
	} {
		to := addr
		if tc.code == exitUnavailable {
			to = unusedAddr(t)
		}
		if got := rowraftCmd(t, append(tc.args, "--insecure", "--endpoints", to)...); got.code != tc.code {
			t.Errorf("rowraft %s: %+v, want exit code %d", strings.Join(tc.args, " "), got, tc.code)
		}
		if !strings.Contains(help, fmt.Sprintf("\n  %3d  ", tc.code)) {
			t.Errorf("rowraft --help does not explain exit code %d:\n%s", tc.code, help)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if code := exitCode(ctx, rowraft.Errorf(rowraft.CodeNoLeader, "stopped while it waited")); code != exitInterrupted || !strings.Contains(help, "\n  130  ") {
		t.Errorf("interrupted: exit code %d, want %d, and in\n%s", code, exitInterrupted, help)
	}
}
