package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/e2e/chaos"
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
			raw, err := os.ReadFile(filepath.Join(args[0], chaos.ConfigFile))
			if err != nil {
				return cli.Usagef("the directory is not that of a run: %w", err)
			}
			var cfg chaos.Config
			if err := json.Unmarshal(raw, &cfg); err != nil {
				return fmt.Errorf("%s: %w", chaos.ConfigFile, err)
			}
			ops, seen, err := verdict.Read(args[0])
			if err != nil {
				return err
			}
			_, verdicts := verdict.Judge(ops, seen, cfg.Clients, cfg.For)
			replayed, err := replay.OfRun(args[0], cfg.Shards, rowraft.SlotCount(cfg.Slots), ops, seen)
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
