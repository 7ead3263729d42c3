package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	g := &globals{}
	root := newRoot(g)
	root.SetArgs(args)
	out := &checkedWriter{w: stdout}
	root.SetOut(out)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = out.err
	}
	if err == nil {
		return exitDone
	}
	code := exitCode(ctx, err)
	if code == exitInterrupted { // advice on what was under way would mislead
		err = &hintedError{error: fmt.Errorf("interrupted: %w", err)}
	}
	printError(stderr, err, g.output == formatJSON || asksForJSON(args))
	return code
}

// checkedWriter keeps the first error of w, because what renders tables drops it.
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
