package cli

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
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
			return Usagef("%q was not typed: nothing was changed; with --yes the command does not ask", name)
		}
		return Usagef("%q is not %q: nothing was changed", got, name)
	}
	return nil
}
