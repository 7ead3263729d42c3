package main

import (
	"context"
	"io"
	"os"

	"github.com/rowraft/rowraft/internal/cli"
)

func main() { os.Exit(cli.Main(newRoot(&globals{}))) }

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return cli.Run(ctx, newRoot(&globals{}), args, stdout, stderr)
}
