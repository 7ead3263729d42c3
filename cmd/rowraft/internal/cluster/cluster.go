package cluster

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/view"
	"github.com/rowraft/rowraft/internal/cli"
)

// NewCmd returns the command `rowraft cluster`.
func NewCmd(g *remote.Flags) *cobra.Command {
	cmd := &cobra.Command{Use: "cluster", Short: "Look at the cluster as a whole", Example: "  rowraft cluster status"}
	cmd.AddCommand(&cobra.Command{
		Use:   "status",
		Short: "Tell what is wrong with the cluster and what to do about it, and show its servers",
		Long: `Tell what is wrong with the cluster and what to do about it, and show its servers.

The first line is the verdict: healthy, degraded (all is served, with less to spare) or critical (something is not
served, or may be lost). Then comes each problem with what to do next, then notes of work that runs, then the servers.

Any server of the cluster can be asked; the scheduler's leader answers. Where the scheduler has none, each server is
asked for itself, and what they say is put together.

Exit codes: 0 healthy; 3 degraded or critical; 4 no server answers; 2 a wrong command line.`,
		Example: `  rowraft cluster status --endpoints 10.0.0.1:7070,10.0.0.2:7070
  rowraft cluster status -o json | jq -r '.findings[] | select(.severity != "note") | .text'
  rowraft cluster status >/dev/null || echo "exit code $?: an operator should look"`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := g.WithTimeout(cmd)
			defer cancel()
			reply, err := Status(ctx, g)
			if err != nil {
				return fmt.Errorf("cluster status: %w", err)
			}
			v := view.NewCluster(reply)
			if err := cli.Show(cmd.OutOrStdout(), g.Output, v, v.Print); err != nil {
				return err
			}
			if !v.Healthy {
				return cli.Verdict(fmt.Errorf("the cluster is %s", v.Headline()))
			}
			return nil
		},
	})
	return cmd
}
