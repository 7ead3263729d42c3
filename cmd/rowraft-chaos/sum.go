package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/e2e/chaos"
	"github.com/rowraft/rowraft/e2e/nemesis"
	"github.com/rowraft/rowraft/internal/cli"
)

func newSumCmd() *cobra.Command {
	minFaults, minKinds := 0, 0
	cmd := &cobra.Command{
		Use:   "sum FILE...",
		Short: "Add up the results that --json has written",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, paths []string) error {
			t := total{Faults: make(map[string]nemesis.Count)}
			for _, path := range paths {
				raw, err := os.ReadFile(path)
				if err != nil {
					return cli.Usagef("%w", err)
				}
				var r result
				if err := json.Unmarshal(raw, &r); err != nil {
					return cli.Usagef("%s is not the result of a run: %w", path, err)
				}
				t.add(&r)
			}
			t.print(cmd.OutOrStdout())
			idle := 0
			for _, k := range slices.Sorted(maps.Keys(t.Faults)) {
				if n := t.Faults[k]; n.Idle() {
					idle++
					fmt.Fprintf(cmd.OutOrStdout(), "WRONG: fault %s was tried %d times and never had an effect\n", k, n.Tried)
				}
			}
			if t.observed() < minFaults || t.kinds() < minKinds {
				fmt.Fprintf(cmd.OutOrStdout(), "WRONG: too little happened: want %d faults of %d kinds\n", minFaults, minKinds)
				return errVerdict
			}
			if t.Violations > 0 || idle > 0 {
				return errVerdict
			}
			return nil
		},
	}
	fl := cmd.Flags()
	fl.IntVar(&minFaults, "min-faults", 0, "fail if fewer faults had an effect")
	fl.IntVar(&minKinds, "min-kinds", 0, "fail if faults of fewer kinds had an effect")
	return cmd
}

// total is the sum of several runs.
type total struct {
	Runs, Violations      int
	Wrong                 []string // violations, and the commands that repeat the runs
	Faults                map[string]nemesis.Count
	Pushes, Lost, Doubled int64
	Diverged              int
	Seconds, Virtual      float64
}

func (t *total) add(r *result) {
	t.Runs++
	t.Violations += len(r.Problems)
	for _, p := range r.Problems[:min(len(r.Problems), chaos.ShownProblems)] {
		t.Wrong = append(t.Wrong, fmt.Sprintf("WRONG: tier %s, seed %d: %s",
			r.Config.Tier, r.Config.Seed, strings.TrimSpace(p)))
	}
	if len(r.Problems) > 0 {
		t.Wrong = append(t.Wrong, "again: "+r.Reproduce)
	}
	t.Pushes += r.Acks
	t.Lost, t.Doubled, t.Diverged = t.Lost+r.Lost, t.Doubled+r.Doubled, t.Diverged+r.Diverged
	t.Seconds += r.Seconds
	t.Virtual += r.Virtual
	for kind, n := range r.Faults {
		sum := t.Faults[kind]
		sum.Tried, sum.Observed, sum.Stood = sum.Tried+n.Tried, sum.Observed+n.Observed, sum.Stood+n.Stood
		t.Faults[kind] = sum
	}
}

// observed returns the number of faults that had an effect; kinds returns the number of their kinds.
func (t *total) observed() int {
	_, n := chaos.Totals(t.Faults)
	return n
}

func (t *total) kinds() (n int) {
	for _, c := range t.Faults {
		if c.Observed > 0 {
			n++
		}
	}
	return n
}

func (t *total) print(w io.Writer) {
	tried, observed := chaos.Totals(t.Faults)
	fmt.Fprintf(w, "\n%-20s %6s %9s\n", "fault", "tried", "observed")
	for _, k := range slices.Sorted(maps.Keys(t.Faults)) {
		n := t.Faults[k]
		fmt.Fprintf(w, "%-20s %6d %9d\n", k, n.Tried, n.Observed)
	}
	fmt.Fprintf(w, "%-20s %6d %9d\n\n", "all", tried, observed)
	fmt.Fprintf(w, "%d runs, %.0f s, %.0f virtual: %d faults of %d kinds, %s pushes acknowledged; %d updates lost, %d "+
		"doubled, %d shards diverged, %d violations\n",
		t.Runs, t.Seconds, t.Virtual, observed, t.kinds(), thousands(t.Pushes), t.Lost, t.Doubled, t.Diverged, t.Violations)
	for _, p := range t.Wrong {
		fmt.Fprintln(w, p)
	}
}
