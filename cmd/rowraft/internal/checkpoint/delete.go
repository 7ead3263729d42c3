package checkpoint

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/terminal"
	"github.com/rowraft/rowraft/internal/cli"
)

func newCheckpointDeleteCmd(g *remote.Flags) *cobra.Command {
	dryRun, cascade, yes := false, false, false
	cmd := &cobra.Command{
		Use:   "delete DESTINATION/NAME",
		Short: "Delete a checkpoint, or what a failed one left behind",
		Long: `Delete a checkpoint, or what a failed one left behind. Its manifest goes first, so that the rest cannot be
taken for a checkpoint. It needs no cluster.

The command lists the checkpoints that go, with their tables and rows, and asks. --yes does not ask; without a terminal
it is needed.

A checkpoint that a delta needs is refused, and so is one to which a delta is being made; --cascade deletes those, too.

` + destinationHelp,
		Example: `  rowraft checkpoint delete /mnt/checkpoints/nightly-1 --dry-run
  rowraft checkpoint delete s3://models/ctr/nightly-1 --cascade --yes`,
		Args: cli.OneArg("the checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return deleteCheckpoint(g, cmd, args[0], cascade, dryRun, yes)
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be deleted, and delete nothing")
	cmd.Flags().BoolVar(&cascade, "cascade", false, "delete the deltas that depend on it, too")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func deleteCheckpoint(g *remote.Flags, cmd *cobra.Command, path string, cascade, dryRun, yes bool) error {
	url, name, err := depot.Split(path)
	if err != nil {
		return err
	}
	d, err := depot.Open(url)
	if err != nil {
		return err
	}
	remove := func(dryRun bool) (names []string, n int, bytes int64, err error) {
		ctx, cancel := g.WithTimeout(cmd)
		defer cancel()
		if cascade {
			return depot.DeleteTree(ctx, d, name, dryRun)
		}
		n, bytes, err = depot.Delete(ctx, d, name, dryRun)
		return []string{name}, n, bytes, err
	}
	names, n, bytes, err := remove(true)
	if err != nil {
		return err
	}
	if err := listDoomed(g, cmd, d, names); err != nil {
		return err
	}
	if !dryRun {
		if !yes {
			if err := terminal.ConfirmOrRefuse(cmd, fmt.Sprintf("They are gone for good. Type %s to delete: ", name), name,
				"--yes"); err != nil {
				return err
			}
		}
		if names, n, bytes, err = remove(false); err != nil {
			return err
		}
	}
	v := struct {
		Schema  string   `json:"schema"`
		Name    string   `json:"name"`
		Names   []string `json:"names"` // deleted checkpoints, in order
		Files   int      `json:"files"`
		Bytes   uint64   `json:"bytes"`
		Deleted bool     `json:"deleted"`
	}{cli.JSONSchema, name, names, n, uint64(bytes), !dryRun}
	return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, _ bool) error {
		what := "deleted"
		if dryRun {
			what = "would delete"
		}
		_, err := fmt.Fprintf(w, "%s checkpoint %s: %s, %s\n", what, strings.Join(names, ", "), cli.Plural(n, "file"),
			cli.Size(uint64(bytes)))
		return err
	})
}

// listDoomed prints the checkpoints that are to be deleted, with their tables and rows.
func listDoomed(g *remote.Flags, cmd *cobra.Command, d depot.Depot, names []string) error {
	ctx, cancel := g.WithTimeout(cmd)
	defer cancel()
	w := cmd.ErrOrStderr()
	for _, name := range names {
		m, err := checkpoint.ReadManifest(ctx, depot.At(d, name))
		if err != nil {
			if rowraft.CodeOf(err) == rowraft.CodeNotFound {
				err = fmt.Errorf("incomplete: what a checkpoint left that failed, or one that is being made")
			}
			fmt.Fprintf(w, "checkpoint %s: %v\n", name, err)
			continue
		}
		var tables []string
		for _, t := range m.Tables {
			tables = append(tables, fmt.Sprintf("%s (%s)", t.Schema.Name, cli.Rows(t.Rows)))
		}
		fmt.Fprintf(w, "checkpoint %s of %s: %s\n", name, m.Created.Format("2006-01-02 15:04:05 MST"),
			strings.Join(tables, ", "))
	}
	return ctx.Err()
}
