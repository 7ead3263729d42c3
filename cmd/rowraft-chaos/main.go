package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/internal/cli"
)

// version is set by the linker (Makefile).
var version = "unknown"

// errVerdict reports that the run completed and found a violation.
var errVerdict = cli.Verdict(errors.New("the run has found violations, see above"))

func main() { os.Exit(cli.Main(newRoot())) }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "rowraft-chaos",
		Short: "Inject faults into a cluster on this machine and check its guarantees",
		Long: `rowraft-chaos starts servers as processes on this machine. While clients count, it injects faults into the
servers and their network, drawn from a seed. Then it checks that no acknowledged push was lost, that none
was applied twice, that all replicas agree and that no term had two leaders.`,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		Version:           version,
	}
	root.SetVersionTemplate("rowraft-chaos {{.Version}}\n")
	root.SetFlagErrorFunc(cli.FlagError)
	root.AddCommand(newRunCmd(), newCheckCmd(), newFaultsCmd(), newSumCmd())
	cli.MakeGroup(root)
	return root
}
