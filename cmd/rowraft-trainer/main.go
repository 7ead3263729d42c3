package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/flagenv"
	"github.com/rowraft/rowraft/internal/rpc"
)

// version is set by `make build`.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	err := newRoot().ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "rowraft-trainer:", rpc.CleanLines(err.Error()))
	}
	os.Exit(exitCode(err))
}

// errInterrupted: a signal ended the run, whose result was written.
var errInterrupted = errors.New("interrupted")

// usageError is a wrong command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if errors.Is(err, errInterrupted) {
		return 130
	}
	if _, ok := errors.AsType[usageError](err); ok {
		return 2
	}
	switch code := rowraft.CodeOf(err); {
	case code == rowraft.CodeInvalidArgument:
		return 2
	case code == rowraft.CodeDeadline, code == rowraft.CodeNoLeader, code == rowraft.CodeStarting:
		return 4
	}
	return 1
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "rowraft-trainer",
		Short: "Train a model whose weights live on a rowraft cluster",
		Long: `rowraft-trainer trains a model whose weights live on a rowraft cluster.

Every flag can also be given as an environment variable: --endpoints is ROWRAFT_ENDPOINTS.
A flag wins over the environment, and both over the job's file.`,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q; `%s --help` lists them", args[0], cmd.Name())}
			}
			return nil
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := flagenv.Set(cmd.Flags()); err != nil {
				return usageError{err}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; `%s --help` lists the flags", err, cmd.CommandPath())}
	})
	root.AddCommand(newTrain(), newStart(), newEval(), newGen(), newProbe())
	for _, c := range root.Commands() {
		c.Args = func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unexpected argument %q", args[0])}
			}
			return nil
		}
	}
	return root
}

// writeJSON writes v to the file called name, "-" for standard output.
func writeJSON(name string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if name == "-" {
		_, err = os.Stdout.Write(text)
		return err
	}
	return os.WriteFile(name, text, 0o644)
}
