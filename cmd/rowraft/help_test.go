package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
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
			if strings.Contains(f.Usage, "`") { // pflag takes the first quoted text for the name of the value
				t.Errorf("%s: --%s has a backquote in its help", path, f.Name)
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

// TestEveryCommandHasAVersion: --version answers on every command, also where arguments or flags are missing.
func TestEveryCommandHasAVersion(t *testing.T) {
	want := rowraftCmd(t, "version").out
	t.Setenv("ROWRAFT_VERSION", "v9") // of a container, not the flag
	everyCommand(newRoot(&remote.Flags{}), func(cmd *cobra.Command) {
		args := append(strings.Fields(cmd.CommandPath())[1:], "--version")
		if got := rowraftCmd(t, args...); got.code != 0 || got.out != want {
			t.Errorf("%s: %+v, want %q", strings.Join(args, " "), got, want)
		}
	})
	if got := rowraftCmd(t, "version"); got.code != 0 {
		t.Errorf("with ROWRAFT_VERSION: %+v", got)
	}
}

// TestNamesOfOtherTools: a name that another tool gives to a command is answered with the command line to type.
func TestNamesOfOtherTools(t *testing.T) {
	for _, tc := range []struct{ args, says string }{
		{"ls", "`rowraft table list`"}, {"status", "`rowraft cluster status`"}, {"health", "`rowraft cluster status`"},
		{"member list", "`rowraft server list`"}, {"table ls", "`rowraft table list`"},
		{"job show ctr", "`rowraft job describe`"}, {"cluster health", "`rowraft cluster status`"},
		{"server ls", "`rowraft server list`"}, {"server show n2", "`rowraft server status`"},
		{"server health", "`rowraft server status`"}, {"server remove n2", "`rowraft server decommission`"},
		{"node list", "`rowraft server list`"}, {"nodes", "`rowraft server list`"}, {"server lits", "did you mean \"list\"?"},
		{"tabel list", "did you mean \"table\"?"},
	} {
		got := rowraftCmd(t, strings.Fields(tc.args)...)
		if got.code != cli.ExitUsage || !strings.Contains(got.errout, tc.says) {
			t.Errorf("rowraft %s: %+v, want %q", tc.args, got, tc.says)
		}
	}
}

// TestCheckpointListOfAWrongPath: the error says what is there.
func TestCheckpointListOfAWrongPath(t *testing.T) {
	dir := t.TempDir()
	if got := rowraftCmd(t, "checkpoint", "list", dir); got.code != cli.ExitDone {
		t.Errorf("an empty directory: %+v", got)
	}
	if got := rowraftCmd(t, "checkpoint", "list", dir+"/no"); got.code != cli.ExitFailed ||
		!strings.Contains(got.errout, "there is no directory "+dir+"/no") {
		t.Errorf("no directory: %+v", got)
	}
	if err := os.Mkdir(filepath.Join(dir, "failed"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := rowraftCmd(t, "checkpoint", "list", dir); got.code != cli.ExitDone {
		t.Errorf("with the empty directory of a checkpoint that failed: %+v", got)
	}
	for _, name := range []string{"notes.txt", "MANIFEST"} { // the second one makes it a checkpoint
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		says := "holds no checkpoint, but notes.txt"
		if name == "MANIFEST" {
			says = "is one checkpoint; list its"
		}
		if got := rowraftCmd(t, "checkpoint", "list", dir); got.code != cli.ExitUsage || !strings.Contains(got.errout, says) {
			t.Errorf("with %s: %+v, want %q", name, got, says)
		}
	}
}
