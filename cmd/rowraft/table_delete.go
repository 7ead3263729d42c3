package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func newTableDeleteCmd(g *globals) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a table with all of its rows",
		Long: `Delete a table with all of its rows, in every shard. It asks for the name to be typed again, unless --yes is given.

Whoever still pushes to the table or pulls from it gets TableNotFound from then on; a later table of the same name is
another one. Checkpoints keep what they hold, and a restore brings the table back. While a restore is under way it is refused.`,
		Example: `  rowraft table delete user_emb
  rowraft table delete user_emb --yes -o json`,
		Args: cli.OneArg("the name of the table"),
		RunE: func(cmd *cobra.Command, args []string) error { return g.deleteTable(cmd, args[0], yes) },
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (g *globals) deleteTable(cmd *cobra.Command, name string, yes bool) (err error) {
	status, err := g.statusInTime(cmd)
	if err != nil {
		return fmt.Errorf("table delete %s: %w", name, err)
	}
	p, err := tableNamed(status.GetMap(), name)
	if err != nil {
		return err
	}
	t, _, err := withSizes(status, p)
	if err != nil {
		return err
	}
	if !yes {
		ask := fmt.Sprintf("Table %s has %s rows, %s. They are gone for good. Type its name to delete it: ", name, cli.Count(t.Rows), cli.Size(t.MemoryBytes))
		if err := confirm(cmd, ask, name); err != nil {
			return err
		}
	}
	ctx, cancel := g.withTimeout(cmd) // a new limit: typing takes time
	defer cancel()
	c, err := g.connect()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	err = c.call(ctx, route.Control, func(ctx context.Context, client rowraftv1.ClusterClient) error {
		_, err := client.DropTable(ctx, &rowraftv1.DropTableRequest{Name: name, Id: p.GetId()})
		return err
	})
	if err != nil {
		return fmt.Errorf("table delete %s: %w", name, err)
	}
	v := struct {
		Schema  string `json:"schema"`
		Table   string `json:"table"`
		ID      string `json:"id"`
		Rows    uint64 `json:"rows"`
		Deleted bool   `json:"deleted"`
	}{cli.JSONSchema, name, t.ID, t.Rows, true}
	return cli.Show(cmd.OutOrStdout(), g.output, v, func(w io.Writer, _ bool) error {
		_, err := fmt.Fprintf(w, "table %s deleted, with %s rows\n", name, cli.Count(t.Rows))
		return err
	})
}

// confirm asks on stderr and requires name as the answer.
func confirm(cmd *cobra.Command, ask, name string) error {
	if _, err := fmt.Fprint(cmd.ErrOrStderr(), ask); err != nil {
		return err
	}
	line, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if got := strings.TrimSpace(line); got != name {
		if err != nil && got == "" {
			fmt.Fprintln(cmd.ErrOrStderr())
			return cli.Usagef("nobody has typed %q: nothing was deleted; --yes does not ask", name)
		}
		return cli.Usagef("%q is not %q: nothing was deleted", got, name)
	}
	return nil
}
