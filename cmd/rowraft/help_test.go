package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
)

// everyCommand calls look for each command that people see.
func everyCommand(cmd *cobra.Command, look func(*cobra.Command)) {
	look(cmd)
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" {
			everyCommand(sub, look)
		}
	}
}

// TestEveryCommandExplainsItself: what it does, an example of it, what each flag means.
func TestEveryCommandExplainsItself(t *testing.T) {
	seen := 0
	everyCommand(newRoot(&remote.Flags{}), func(cmd *cobra.Command) {
		seen++
		path := cmd.CommandPath()
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: Short is %q, want a sentence without a full stop", path, cmd.Short)
		}
		if !strings.Contains(cmd.Example, path) {
			t.Errorf("%s: no example names it: %q", path, cmd.Example)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" && f.Name != "help" {
				t.Errorf("%s: --%s is not explained", path, f.Name)
			}
		})
		names := make(map[string]bool)
		for _, sub := range cmd.Commands() {
			for _, n := range append(slices.Clone(sub.Aliases), sub.Name()) {
				if names[n] {
					t.Errorf("%s: two commands are called %s", path, n)
				}
				names[n] = true
			}
		}
	})
	if seen < 50 {
		t.Errorf("only %d commands were seen", seen)
	}
}
