package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/e2e/check"
	"github.com/rowraft/rowraft/e2e/replay"
	"github.com/rowraft/rowraft/e2e/verdict"
	"github.com/rowraft/rowraft/internal/cli"
)

func newCheckCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "check DIR",
		Short: "Check the records of an earlier run again",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			raw, err := os.ReadFile(filepath.Join(args[0], configFile))
			if err != nil {
				return cli.Usagef("the directory is not that of a run: %w", err)
			}
			var cfg config
			if err := json.Unmarshal(raw, &cfg); err != nil {
				return fmt.Errorf("%s: %w", configFile, err)
			}
			ops, seen, err := verdict.Read(args[0])
			if err != nil {
				return err
			}
			_, verdicts := verdict.Judge(ops, seen, cfg.Clients, cfg.For)
			replayed, err := replay.OfRun(args[0], cfg.Shards, ops, seen)
			switch {
			case errors.Is(err, replay.ErrNoData):
				fmt.Fprintf(cmd.OutOrStdout(), "replay     left out       %v\n", err)
			case err != nil:
				return err
			default:
				verdicts = append(verdicts, replayed)
			}
			wrong := false
			for _, v := range verdicts {
				fmt.Fprintln(cmd.OutOrStdout(), v)
				for _, p := range v.Wrong {
					wrong = true
					fmt.Fprintf(cmd.OutOrStdout(), "WRONG: %s\n", p)
				}
			}
			if wrong {
				return errVerdict
			}
			return nil
		},
	}
}

// checkRecords checks the records of the run.
func (r *chaos) checkRecords() error {
	ops, seen, err := verdict.Read(r.cfg.dir)
	if err != nil {
		return err
	}
	r.res.Checked = len(ops)
	r.res.Terms = verdict.Terms(seen.Leads)
	var tally check.Tally
	tally, r.res.Verdicts = verdict.Judge(ops, seen, r.cfg.Clients, r.cfg.For)
	r.res.Lost, r.res.Doubled = max(r.res.Lost, tally.Lost), max(r.res.Doubled, tally.Doubled)
	replayed, err := replay.OfRun(r.cfg.dir, r.cfg.Shards, ops, seen)
	if err != nil {
		return err
	}
	r.res.Verdicts = append(r.res.Verdicts, replayed)
	for _, v := range r.res.Verdicts {
		for _, p := range v.Wrong {
			r.wrong("%s: %s", v.Checker, p)
		}
	}
	return nil
}
