package cli

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

const envPrefix = "ROWRAFT_"

// envName returns the environment variable of a flag.
func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// destructive are the flags that delete or replace data, or skip the question before that. They are valid on the
// command line only: a variable that was exported for one command must not delete the data of the next one.
var destructive = []string{"fresh", "replace", "yes"}

// FromEnvironment sets each flag that is not on the command line and whose environment variable is set, but for the
// destructive ones. It returns a usage error that names the variables.
func FromEnvironment(flags *pflag.FlagSet) error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		value, ok := os.LookupEnv(envName(f.Name))
		if !ok || f.Changed || f.Name == "help" || slices.Contains(destructive, f.Name) {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s: %w", envName(f.Name), err))
		}
	})
	if len(errs) == 0 {
		return nil
	}
	return &usageError{errors.Join(errs...)}
}

// WithoutFlags returns the variables of environ, each NAME=value, that are not of flags: a process that a command
// starts must not inherit them. ROWRAFT_PJRT_PLUGIN, which names a file of this machine, stays, and so do the variables
// of programs built by scripts/tardy.
func WithoutFlags(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(v string) bool {
		return strings.HasPrefix(v, envPrefix) && !strings.HasPrefix(v, "ROWRAFT_PJRT_PLUGIN=") &&
			!strings.HasPrefix(v, "ROWRAFT_TARDY_")
	})
}
