package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/e2e/history"
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
			problems := checkOps(ops)
			fmt.Fprintf(cmd.OutOrStdout(), "seed %d: %d operations (%s), %d violations\n", cfg.Seed, len(ops), checkerName, len(problems))
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
	for _, p := range checkOps(ops) {
		r.wrong("history: %s", p)
	}
	return nil
}

const checkerName = "bounds"

// checkOps checks every read against what had been acknowledged and called: a
// client's own pushes always, everybody's for linearizable reads.
func checkOps(ops []history.Op) []string { return checkBounds(ops) }
