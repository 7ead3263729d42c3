package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/trainer"
)

// startOver deletes the tables of the job after it has listed them and asked.
func (o *options) startOver(cmd *cobra.Command, cfg *trainer.Config) error {
	if err := cfg.CheckData(); err != nil { // nothing is deleted for a job that cannot train
		return err
	}
	ctx := cmd.Context()
	c, err := o.dial(ctx, cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	tables, err := cfg.Tables(ctx, c)
	if err != nil {
		return err
	}
	if len(tables) == 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "job %s has no tables: there is nothing to delete\n", cfg.Job)
		return nil
	}
	var list strings.Builder
	for _, t := range tables {
		fmt.Fprintf(&list, "  %s, %s\n", t.Schema.Name, cli.Rows(t.Rows))
	}
	if !o.yes {
		err := cli.Confirm(cmd, fmt.Sprintf("--fresh deletes the tables of job %s, which are gone for good:\n%s"+
			"Type the job's name to delete them: ", cfg.Job, &list), cfg.Job)
		if err != nil {
			return err
		}
	}
	if err := cfg.StartOver(ctx, c, tables); err != nil {
		return err
	}
	if o.yes {
		fmt.Fprintf(cmd.ErrOrStderr(), "deleted the tables of job %s:\n%s", cfg.Job, &list)
	}
	return nil
}
