package terminal

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/rowraft/rowraft/internal/cli"
)

// ConfirmOrRefuse asks on a terminal and requires the given answer.
func ConfirmOrRefuse(cmd *cobra.Command, ask, want, instead string) error {
	if in, ok := cmd.InOrStdin().(*os.File); ok && !term.IsTerminal(int(in.Fd())) {
		return cli.Refused(cli.Usagef("standard input is no terminal, so there is no one to ask and nothing was changed: "+
			"give %s", instead))
	}
	if err := cli.Confirm(cmd, ask, want); err != nil {
		return cli.Refused(fmt.Errorf("%w; or give %s", err, instead))
	}
	return nil
}
