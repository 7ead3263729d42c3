package rowstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/internal/cli"
)

// config is what the flags say.
type config struct {
	rows   int            // of the tables of dim 16; dim 64 has a fifth
	rounds int            // each figure is the median of so many
	only   *regexp.Regexp // groups to run
}

// figure is one line of the result; the names are a contract.
type figure struct {
	Name   string   `json:"name"`
	Value  float64  `json:"value"`
	Unit   string   `json:"unit"`
	Bar    *float64 `json:"bar,omitempty"`
	AtMost bool     `json:"at_most,omitempty"` // the bar is an upper one
	OK     bool     `json:"ok"`
}

func (f figure) String() string {
	s := fmt.Sprintf("%-52s %10.3f %-8s", f.Name, f.Value, f.Unit)
	if f.Bar == nil {
		return s
	}
	relation, verdict := "≥", "ok"
	if f.AtMost {
		relation = "≤"
	}
	if !f.OK {
		verdict = "MISSED"
	}
	return fmt.Sprintf("%s %s %g %s", s, relation, *f.Bar, verdict)
}

// free is a figure without a bar.
func free(name string, value float64, unit string) figure {
	return figure{Name: name, Value: value, Unit: unit, OK: true}
}

func atLeast(name string, value float64, unit string, bar float64) figure {
	return figure{Name: name, Value: value, Unit: unit, Bar: &bar, OK: value >= bar}
}

func atMost(name string, value float64, unit string, bar float64) figure {
	return figure{Name: name, Value: value, Unit: unit, Bar: &bar, AtMost: true, OK: value <= bar}
}

// groups are run in this order, each with its memory to itself.
var groups = []struct {
	name string
	run  func(config, func(figure)) error
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

// NewCommand returns the command rowstore.
func NewCommand() *cobra.Command {
	c := config{}
	only, profile := "", ""
	asJSON, check := false, false
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
			missed, err := run(c, cmd.OutOrStdout(), asJSON)
			if err == nil && check && missed > 0 {
				return cli.Verdict(fmt.Errorf("rowstore: %s missed their bar", cli.Plural(missed, "figure")))
			}
			return err
		},
	}
	fl := cmd.Flags()
	fl.IntVar(&c.rows, "rows", 10_000_000, "rows of the tables of dim 16; those of dim 64 have a fifth of them")
	fl.IntVar(&c.rounds, "rounds", 7, "rounds of each figure, whose median counts")
	fl.StringVar(&only, "only", "",
		"regular expression: run only these of gather, apply, create, flood, growth, bytes, machine, held, snapshot, acked")
	fl.BoolVar(&asJSON, "json", false, "print JSON lines")
	fl.StringVar(&profile, "cpu-profile", "", "write a CPU profile to this file")
	fl.BoolVar(&check, "check", false, "exit with code 3 if a figure misses its bar")
	return cmd
}

// run measures the groups that c wants, and returns how many figures missed their bar.
func run(c config, out io.Writer, asJSON bool) (missed int, err error) {
	runtime.LockOSThread() // CPU time is counted by thread
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // marking the map's pointers is not what is measured
	for _, g := range groups {
		if !c.only.MatchString(g.name) {
			continue
		}
		var lost error
		err := g.run(c, func(f figure) {
			if !f.OK {
				missed++
			}
			if err := show(out, f, asJSON); err != nil {
				lost = err
			}
		})
		if err = errors.Join(err, lost); err != nil {
			return missed, fmt.Errorf("%s: %w", g.name, err)
		}
		runtime.GC()
		debug.FreeOSMemory()
	}
	return missed, nil
}

func show(out io.Writer, f figure, asJSON bool) error {
	if !asJSON {
		_, err := fmt.Fprintln(out, f)
		return err
	}
	return json.NewEncoder(out).Encode(f)
}
