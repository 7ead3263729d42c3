package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
)

// commandPaths returns the paths of all commands below root that do something.
func commandPaths(root *cobra.Command) (paths [][]string) {
	for _, sub := range root.Commands() {
		if sub.HasSubCommands() {
			paths = append(paths, commandPaths(sub)...)
		} else {
			paths = append(paths, strings.Fields(sub.CommandPath())[1:])
		}
	}
	return paths
}

// prepare parses a command line and returns the flags with which the command would run.
func prepare(t *testing.T, args ...string) (g *remote.Flags, cmd *cobra.Command, err error) {
	t.Helper()
	g = remote.NewFlags("test", os.Exit)
	root := newRoot(g)
	cmd, _, err = root.Find(args)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Args, cmd.Run = cobra.ArbitraryArgs, nil
	cmd.RunE = func(*cobra.Command, []string) error { return nil }
	root.SetArgs(args)
	return g, cmd, root.ExecuteContext(t.Context())
}

// TestVariablesOfAnotherCluster: whatever is exported, every command runs with the flags on its command line, and no
// command does something because of a variable.
func TestVariablesOfAnotherCluster(t *testing.T) {
	lab := filepath.Join(t.TempDir(), "lab")
	if got := rowraftCmd(t, "cert", "lab", "--dir", lab); got.code != cli.ExitDone {
		t.Fatal(got.errout)
	}
	paths := commandPaths(newRoot(remote.NewFlags("test", os.Exit)))
	if len(paths) < 40 {
		t.Fatalf("%d commands: %q", len(paths), paths)
	}
	t.Setenv("ROWRAFT_CERTS", "/nonexistent")
	t.Setenv("ROWRAFT_ENDPOINTS", "elsewhere:1")
	_, tree, err := prepare(t, "version")
	if err != nil {
		t.Fatal(err)
	}
	// A value that no flag takes, for each flag of a command that runs no server.
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if !remote.Serves(cmd) {
			cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
				name := "ROWRAFT_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
				if _, known := os.LookupEnv(name); !known && !servers(f.Name) {
					t.Setenv(name, "true")
				}
			})
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(tree.Root())
	for _, name := range []string{"ROWRAFT_YES", "ROWRAFT_REPLACE", "ROWRAFT_FORCE"} {
		if os.Getenv(name) != "true" {
			t.Errorf("%s is not tried", name)
		}
	}
	for _, path := range paths {
		line := strings.Join(path, " ")
		g, cmd, err := prepare(t, append(slices.Clone(path), "--insecure", "--endpoints", "here:1")...)
		if err != nil {
			t.Errorf("%s --insecure: %v", line, err)
			continue
		}
		if !g.Insecure || !g.TLS.IsZero() || !slices.Equal(g.Endpoints, []string{"here:1"}) {
			t.Errorf("%s --insecure: %+v", line, g)
		}
		if !remote.Serves(cmd) {
			cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
				if f.Changed {
					t.Errorf("%s: a variable has set --%s", line, f.Name)
				}
			})
		}
	}
	// A missing directory is named by its variable.
	if _, _, err := prepare(t, "table", "list"); err == nil || !strings.Contains(err.Error(), "ROWRAFT_CERTS: ") {
		t.Errorf("certificates that are missing: %v", err)
	}
	t.Setenv("ROWRAFT_INSECURE", "true")
	for _, path := range paths {
		line := strings.Join(path, " ")
		g, cmd, err := prepare(t, append(slices.Clone(path), "--certs", lab)...)
		if err != nil || g.Insecure || g.Certs != lab {
			t.Errorf("%s --certs: %v, %+v", line, err, g)
		}
		_, _, err = prepare(t, path...)
		if remote.StartsItsOwn(cmd) {
			if err != nil {
				t.Errorf("%s: %v", line, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), "ROWRAFT_CERTS and ROWRAFT_INSECURE") {
			t.Errorf("%s with two variables that conflict: %v", line, err)
		}
	}
}

// servers reports whether servers have a flag of this name, which a variable may set.
func servers(name string) bool {
	for _, cmd := range newRoot(remote.NewFlags("test", os.Exit)).Commands() {
		if remote.Serves(cmd) && cmd.Flags().Lookup(name) != nil {
			return true
		}
	}
	return false
}

// TestAServerTakesTheSchedulerOfItsCommandLine: --scheduler wins over ROWRAFT_JOIN, and the other way round.
func TestAServerTakesTheSchedulerOfItsCommandLine(t *testing.T) {
	t.Setenv("ROWRAFT_JOIN", "a:1,b:1,c:1")
	t.Setenv("ROWRAFT_WITH_SCHEDULER", "true")
	_, cmd, err := prepare(t, "server", "--insecure", "--scheduler", "s:1")
	if err != nil || cmd.Flags().Changed("join") || cmd.Flags().Changed("with-scheduler") {
		t.Errorf("--scheduler: %v", err)
	}
	t.Setenv("ROWRAFT_SCHEDULER", "s:1")
	if _, cmd, err = prepare(t, "server", "--insecure", "--join", "d:1"); err != nil || cmd.Flags().Changed("scheduler") ||
		!cmd.Flags().Changed("with-scheduler") {
		t.Errorf("--join: %v", err)
	}
	if _, _, err = prepare(t, "server", "--insecure"); err == nil || !strings.Contains(err.Error(), "ROWRAFT_SCHEDULER") {
		t.Errorf("both in the environment: %v", err)
	}
}

// TestAPlaintextServerDoesNotJoinTheClusterOfVariables whose certificates --insecure ignores. A server that waits for
// addresses of a variable logs its name.
func TestAPlaintextServerDoesNotJoinTheClusterOfVariables(t *testing.T) {
	t.Setenv("ROWRAFT_JOIN", unusedAddr(t))
	for _, tc := range []struct {
		certs string
		says  []string
	}{
		{"/nonexistent", []string{"ROWRAFT_JOIN is ignored", "needs --join"}},
		{"", []string{`"from":"ROWRAFT_JOIN"`}},
	} {
		t.Setenv("ROWRAFT_CERTS", tc.certs)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var out bytes.Buffer
		errout := &cancelOnText{text: "from\":\"ROWRAFT_JOIN", cancel: cancel}
		run(ctx, []string{"server", "--insecure", "--data-dir", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0",
			"--peer-listen", "127.0.0.1:0"}, &out, errout)
		cancel()
		for _, want := range tc.says {
			if !strings.Contains(errout.String(), want) {
				t.Errorf("ROWRAFT_CERTS=%s: it does not say %q:\n%s", tc.certs, want, errout.String())
			}
		}
	}
}

// cancelOnText ends a command that has written the text.
type cancelOnText struct {
	text   string
	cancel context.CancelFunc

	mu  sync.Mutex
	all strings.Builder
}

func (w *cancelOnText) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all.Write(b); strings.Contains(w.all.String(), w.text) {
		w.cancel()
	}
	return len(b), nil
}

func (w *cancelOnText) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.String()
}
