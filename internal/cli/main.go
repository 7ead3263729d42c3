package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Main runs the command line of this process and returns its exit code. The first signal cancels the
// command's context, the second one ends the process at once.
func Main(root *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return Run(ctx, root, os.Args[1:], os.Stdout, os.Stderr)
}

// Run executes one command line and returns the exit code. It prints errors as JSON if root has the flag
// --output and it requests JSON.
func Run(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SilenceErrors, root.SilenceUsage = true, true
	if root.Version != "" {
		root.SetVersionTemplate(root.Name() + " {{.Version}}\n")
		addVersion(root, root.Version)
	}
	root.SetArgs(args)
	out := &checkedWriter{w: stdout}
	root.SetOut(out)
	root.SetErr(stderr)
	wrapHelp(root, stdout)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = out.err
	}
	if err == nil {
		return ExitDone
	}
	code := ExitCode(ctx, err)
	if code == ExitInterrupted && !errors.Is(err, ErrInterrupted) { // advice for the interrupted operation would mislead
		err = Hint(fmt.Errorf("interrupted: %w", err), "")
	}
	output := root.PersistentFlags().Lookup("output")
	PrintError(stderr, root.Name(), err, output != nil && (output.Value.String() == FormatJSON || asksForJSON(args)))
	return code
}

// addVersion gives cmd and all commands below it the flag --version. Only the help of the first one shows it.
func addVersion(cmd *cobra.Command, version string) {
	cmd.Version = version
	cmd.InitDefaultVersionFlag()
	for _, sub := range cmd.Commands() {
		addVersion(sub, version)
		if f := sub.Flags().Lookup("version"); f != nil {
			f.Hidden = true
		}
	}
}

// checkedWriter keeps the first error of w, because the table renderer drops it.
type checkedWriter struct {
	w   io.Writer
	err error
}

func (c *checkedWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	if c.err == nil {
		c.err = err
	}
	return n, err
}
