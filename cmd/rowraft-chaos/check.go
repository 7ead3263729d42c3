package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/e2e/check"
	"github.com/rowraft/rowraft/e2e/history"
	"github.com/rowraft/rowraft/e2e/load"
)

func newCheckCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "check DIR",
		Short: "Check the history of an earlier run again",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			raw, err := os.ReadFile(filepath.Join(args[0], configFile))
			if err != nil {
				return usagef("not the directory of a run: %w", err)
			}
			var cfg config
			if err := json.Unmarshal(raw, &cfg); err != nil {
				return fmt.Errorf("%s: %w", configFile, err)
			}
			ops, err := history.Read(filepath.Join(args[0], historyFile))
			if err != nil {
				return err
			}
			tally, problems := checkOps(ops, cfg.Clients)
			fmt.Fprintf(cmd.OutOrStdout(), "seed %d: %d operations (%s): %v; %d violations\n", cfg.Seed, len(ops), checkerName, tally, len(problems))
			for _, p := range problems {
				fmt.Fprintf(cmd.OutOrStdout(), "WRONG: %s\n", p)
			}
			if len(problems) > 0 {
				return errVerdict
			}
			return nil
		},
	}
}

// checkHistory checks what the run has recorded.
func (r *chaos) checkHistory() error {
	ops, err := history.Read(filepath.Join(r.cfg.dir, historyFile))
	if err != nil {
		return err
	}
	r.res.Checked, r.res.Checker = len(ops), checkerName
	tally, problems := checkOps(ops, r.cfg.Clients)
	r.res.Lost, r.res.Doubled = max(r.res.Lost, tally.Lost), max(r.res.Doubled, tally.Doubled)
	for _, p := range problems {
		r.wrong("history: %s", p)
	}
	return nil
}

const checkerName = "exact, package e2e/check"

// checkOps checks every read of a history against every push, and counts. The
// guests of the load push as well.
func checkOps(ops []history.Op, clients int) (check.Tally, []string) {
	var problems []string
	for _, v := range check.Vec(ops, clients+load.Guests) {
		problems = append(problems, v.String())
	}
	t := check.Count(ops)
	if t.FinalReads == 0 || t.UnreadRows > 0 {
		problems = append(problems, fmt.Sprintf("%d rows were not read in the end", t.UnreadRows))
	}
	if t.Lost > 0 || t.Doubled > 0 {
		problems = append(problems, fmt.Sprintf("%d additions lost, %d doubled", t.Lost, t.Doubled))
	}
	return t, problems
}
