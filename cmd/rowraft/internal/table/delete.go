package table

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/terminal"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/view"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func newTableDeleteCmd(g *remote.Flags) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a table with all of its rows",
		Long: `Delete a table with all of its rows, in every shard. It asks for the name to be typed again, unless --yes is given.

A client that still uses the table gets TableNotFound; a later table of the same name is
another one. Checkpoints keep what they hold, and a restore brings the table back. While a restore is under way it is refused.`,
		Example: `  rowraft table delete user_emb
  rowraft table delete user_emb --yes -o json`,
		Args: cli.OneArg("the name of the table"),
		RunE: func(cmd *cobra.Command, args []string) error { return deleteTable(g, cmd, args[0], yes) },
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func deleteTable(g *remote.Flags, cmd *cobra.Command, name string, yes bool) (err error) {
	status, err := g.Status(cmd.Context())
	if err != nil {
		return fmt.Errorf("table delete %s: %w", name, err)
	}
	p, err := view.FindTable(status.GetMap(), name)
	if err != nil {
		return err
	}
	t, _, err := withSizes(status, p)
	if err != nil {
		return err
	}
	if !yes {
		ask := fmt.Sprintf("Table %s has %s, %s. They are gone for good. Type its name to delete it: ", name,
			cli.Rows(t.Rows), cli.Size(t.MemoryBytes))
		if err := terminal.ConfirmOrRefuse(cmd, ask, name, "--yes"); err != nil {
			return err
		}
	}
	_, err = remote.Call(cmd.Context(), g, route.Control, rowraftv1.NewClusterClient, rowraftv1.ClusterClient.DropTable,
		&rowraftv1.DropTableRequest{Name: name, Id: p.GetId()})
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
	return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, _ bool) error {
		_, err := fmt.Fprintf(w, "table %s deleted, with %s\n", name, cli.Rows(t.Rows))
		return err
	})
}
