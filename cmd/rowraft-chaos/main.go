package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/internal/cli"
)

// version is set by the linker (Makefile).
var version = "unknown"

// errVerdict says that the run went through and found something wrong.
var errVerdict = cli.Verdict(errors.New("the run has found something wrong, see above"))

func main() { os.Exit(cli.Main(newRoot())) }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "rowraft-chaos",
		Short: "Break a cluster on this machine and check what it promises",
		Long: `rowraft-chaos starts servers as processes on this machine, breaks them and their network from a
seed while clients count, and checks that no acknowledged push was lost, none applied twice, that all
replicas agree and that no term had two leaders.`,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		Version:           version,
	}
	root.SetVersionTemplate("rowraft-chaos {{.Version}}\n")
	root.SetFlagErrorFunc(cli.FlagError)
	root.AddCommand(newRunCmd(), newCheckCmd(), newFaultsCmd(), newSumCmd())
	cli.MakeGroup(root)
	return root
}
