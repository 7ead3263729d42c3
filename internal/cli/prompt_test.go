package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestConfirmWantsTheName(t *testing.T) {
	for answer, ok := range map[string]bool{"users\n": true, " users \r\n": true, "users": true, "user\n": false,
		"yes\n": false, "\n": false, "": false} {
		cmd := &cobra.Command{}
		cmd.SetIn(strings.NewReader(answer))
		var asked strings.Builder
		cmd.SetErr(&asked)
		if err := Confirm(cmd, "really? ", "users"); (err == nil) != ok || !strings.HasPrefix(asked.String(), "really? ") {
			t.Errorf("%q: %v after %q, want it accepted: %v", answer, err, asked.String(), ok)
		}
	}
}
