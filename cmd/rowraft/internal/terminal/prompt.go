package terminal

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/rowraft/rowraft/internal/cli"
)

// Confirm asks on stderr and requires name as the answer.
func Confirm(cmd *cobra.Command, ask, name string) error {
	if _, err := fmt.Fprint(cmd.ErrOrStderr(), ask); err != nil {
		return err
	}
	line, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if got := strings.TrimSpace(line); got != name {
		if err != nil && got == "" {
			fmt.Fprintln(cmd.ErrOrStderr())
			return cli.Usagef("%q was not typed: nothing was deleted; --yes does not ask", name)
		}
		return cli.Usagef("%q is not %q: nothing was deleted", got, name)
	}
	return nil
}

// ConfirmOrRefuse asks on a terminal and requires the given answer.
func ConfirmOrRefuse(cmd *cobra.Command, ask, want, instead string) error {
	if in, ok := cmd.InOrStdin().(*os.File); ok && !term.IsTerminal(int(in.Fd())) {
		return cli.Refused(cli.Usagef("standard input is no terminal, so there is no one to ask: give %s", instead))
	}
	if err := Confirm(cmd, ask, want); err != nil {
		return cli.Refused(fmt.Errorf("%w; or give %s", err, instead))
	}
	return nil
}
