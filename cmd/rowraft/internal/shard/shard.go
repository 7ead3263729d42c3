package shard

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/view"
	"github.com/rowraft/rowraft/internal/cli"
)

// NewCmd returns the command `rowraft shard`.
func NewCmd(g *remote.Flags) *cobra.Command {
	cmd := &cobra.Command{Use: "shard",
		Short: "Look at the shards and their replicas, compare and move them, transfer leads"}
	tableName := ""
	list := &cobra.Command{
		Use:   "list",
		Short: "List the shards: leader, indices, replicas, rows",
		Example: `  rowraft shard list
  rowraft shard list --table user_emb -o wide`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			reply, err := g.Status(cmd.Context())
			if err != nil {
				return fmt.Errorf("shard list: %w", err)
			}
			v, err := view.NewShardList(reply, tableName)
			if err != nil {
				return err
			}
			return cli.Show(cmd.OutOrStdout(), g.Output, v, v.Print)
		},
	}
	list.Flags().StringVar(&tableName, "table", "", "count the rows and bytes of this table only")
	cmd.AddCommand(list, newShardDescribeCmd(g), newDigestCmd(g), newTransferLeaderCmd(g), newMoveCmd(g), newMovesCmd(g),
		newCancelMoveCmd(g))
	return cmd
}
