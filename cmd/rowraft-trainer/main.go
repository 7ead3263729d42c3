package main

import (
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/internal/cli"
)

// version is set by `make build`.
var version = "dev"

func main() { os.Exit(cli.Main(newRoot())) }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "rowraft-trainer",
		Short: "Train a model whose weights live on a rowraft cluster",
		Long: `rowraft-trainer trains a model whose weights live on a rowraft cluster.

Every flag of train, start, sweep, evaluate, predict, export, serve and runs can also be given as an
environment variable: --endpoints is ROWRAFT_ENDPOINTS. A flag wins over every variable that conflicts with
it, and both over the job's file. No variable sets --fresh.`,
		Version: version,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Lookup("runs") != nil ||
				slices.Contains([]string{"evaluate", "predict", "export", "serve"}, cmd.Name()) {
				return cli.FromEnvironment(cmd, true)
			}
			return nil
		},
	}
	root.SetFlagErrorFunc(cli.FlagError)
	root.AddCommand(newTrain(), newStart(), newEval(), newPredict(), newExport(), newServe(), newGen(), newProbe(),
		newRuns(), newSweep(), newSmoke())
	for _, c := range root.Commands() {
		if c.Args == nil {
			c.Args = cli.NoArgs
		}
	}
	cli.MakeGroup(root)
	return root
}
