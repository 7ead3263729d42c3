package flagenv

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

const prefix = "ROWRAFT_"

// Name is the environment variable of a flag.
func Name(flag string) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Set sets the flags that were not given and whose variable is set. Its errors
// name the variable.
func Set(flags *pflag.FlagSet) error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		value, ok := os.LookupEnv(Name(f.Name))
		if !ok || f.Changed || f.Name == "help" {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s: %w", Name(f.Name), err))
		}
	})
	return errors.Join(errs...)
}

// Without returns the variables of environ, each NAME=value, that are not of
// flags. ROWRAFT_PJRT_PLUGIN names a file of this machine and stays, and so does what
// programs built by scripts/tardy read.
func Without(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(v string) bool {
		return strings.HasPrefix(v, prefix) && !strings.HasPrefix(v, "ROWRAFT_PJRT_PLUGIN=") && !strings.HasPrefix(v, "ROWRAFT_TARDY_")
	})
}
