package main

import (
	"os"

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

Every flag of train, start, evaluate and predict can also be given as an environment variable: --endpoints is
ROWRAFT_ENDPOINTS. A flag wins over every variable that conflicts with it, and both over the job's
file. No variable sets --fresh.`,
		Version: version,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			switch cmd.Name() {
			case "train", "start", "evaluate", "predict":
				return cli.FromEnvironment(cmd, true)
			}
			return nil
		},
	}
	root.SetFlagErrorFunc(cli.FlagError)
	root.AddCommand(newTrain(), newStart(), newEval(), newPredict(), newGen(), newProbe(), newSmoke())
	for _, c := range root.Commands() {
		c.Args = cli.NoArgs
	}
	cli.MakeGroup(root)
	return root
}
