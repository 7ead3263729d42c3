package rowstore

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft-bench/figures"
	"github.com/rowraft/rowraft/internal/cli"
)

// config has the flags.
type config struct {
	rows   int            // of the tables of dim 16; dim 64 has a fifth
	rounds int            // each figure is the median of so many
	only   *regexp.Regexp // groups to run
}

// groups are run in this order, each with its memory to itself.
var groups = []struct {
	name string
	run  func(config, func(figures.Figure)) error
}{
	{"gather", gather},
	{"apply", apply},
	{"create", create},
	{"flood", flood},
	{"growth", growth},
	{"bytes", bytesPerRow},
	{"machine", machine},
	{"held", held},
	{"snapshot", snapshot},
	{"acked", acked},
}

// NewCommand returns the command rowstore. Its output has the format.
func NewCommand(format *string) *cobra.Command {
	c := config{}
	only, profile := "", ""
	check := false
	cmd := &cobra.Command{
		Use:   "rowstore",
		Short: "Measure the row store by itself, in this process and on one core",
		Long: `Measure the row store by itself, in this process and on one core: gathering rows compared with Go's map,
applying gradients, creating rows, bytes a row, the pauses of growth, and pulls concurrently with applies of a shard.

Rows per second are per second of the measuring thread's CPU time, so that what else runs on the
machine counts as little as possible; figures of several goroutines are per second of the clock.
Every figure is a median of rounds that take turns.`,
		Example: "  rowraft-bench rowstore --check --only gather",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if c.rows < 100_000 || c.rounds < 1 {
				return cli.Usagef("--rows %d --rounds %d: want at least 100000 rows and a round", c.rows, c.rounds)
			}
			if c.only, err = regexp.Compile(only); err != nil {
				return cli.Usagef("--only: %w", err)
			}
			stop, err := cli.StartProfile(profile)
			if err != nil {
				return err
			}
			defer stop()
			p := figures.NewPrinter(cmd.OutOrStdout(), *format)
			if err := run(cmd.Context(), c, p); err != nil || !check {
				return err
			}
			return p.Verdict()
		},
	}
	fl := cmd.Flags()
	fl.IntVar(&c.rows, "rows", 10_000_000, "rows of the tables of dim 16; those of dim 64 have a fifth of them")
	fl.IntVar(&c.rounds, "rounds", 7, "rounds of each figure, whose median counts")
	fl.StringVar(&only, "only", "",
		"regular expression: run only these of gather, apply, create, flood, growth, bytes, machine, held, snapshot, acked")
	fl.StringVar(&profile, "cpu-profile", "", "write a CPU profile to this file")
	fl.BoolVar(&check, "check", false, "exit with code 3 if a figure misses its bar")
	return cmd
}

// run measures the groups that c wants. A signal ends it after the group that runs.
func run(ctx context.Context, c config, p *figures.Printer) error {
	runtime.LockOSThread() // CPU time is counted by thread
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // marking the map's pointers is not what is measured
	for _, g := range groups {
		if !c.only.MatchString(g.name) {
			continue
		}
		if err := errors.Join(g.run(c, p.Add), p.Err(), ctx.Err()); err != nil {
			return fmt.Errorf("%s: %w", g.name, err)
		}
		runtime.GC()
		debug.FreeOSMemory()
	}
	return nil
}
