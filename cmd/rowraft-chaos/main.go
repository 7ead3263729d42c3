package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
)

// version is set by the linker (Makefile).
var version = "unknown"

// Exit codes, as those of rowraft.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitVerdict     = 3
	exitInterrupted = 130
)

// errVerdict says that the run went through and found something wrong.
var errVerdict = errors.New("the run has found something wrong, see above")

func usagef(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodeInvalidArgument, format, args...)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:   "rowraft-chaos",
		Short: "Break a cluster on this machine and check what it promises",
		Long: `rowraft-chaos starts servers as processes on this machine, breaks them and their network from a
seed while clients count, and checks that no acknowledged push was lost, none applied twice, that all
replicas agree and that no term had two leaders.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		Version:           version,
	}
	root.SetVersionTemplate("rowraft-chaos {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; `%s --help` lists the flags", err, cmd.CommandPath())
	})
	root.AddCommand(newRunCmd(), newCheckCmd(), newFaultsCmd(), newSumCmd())
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	fmt.Fprintf(stderr, "rowraft-chaos: %v\n", err)
	switch {
	case errors.Is(err, errVerdict):
		return exitVerdict
	case errors.Is(ctx.Err(), context.Canceled):
		return exitInterrupted
	case rowraft.CodeOf(err) == rowraft.CodeInvalidArgument:
		return exitUsage
	}
	return exitFailed
}
