package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const envPrefix = "ROWRAFT_"

// envName returns the environment variable of a flag.
func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Annotations of flags.
const (
	kindAnnotation   = "rowraft_kind"   // of Exclusive
	originAnnotation = "rowraft_origin" // what set the flag, if not the command line
)

// ExclusiveSecurity makes --certs, --cert with --key and --cacert, and --insecure exclude each other ([Exclusive]).
func ExclusiveSecurity(flags *pflag.FlagSet) {
	Exclusive(flags, "security", []string{"certs"}, []string{"cert", "key", "cacert"}, []string{"insecure"})
}

// Exclusive declares kinds of flags of which a process has one. A kind that is given on the command line makes
// [FromEnvironment] ignore the variables of the other kinds, and a kind in the environment does so to a configuration
// file. Two kinds in one of these places are an error.
func Exclusive(flags *pflag.FlagSet, group string, kinds ...[]string) {
	for _, kind := range kinds {
		for _, name := range kind {
			if f := flags.Lookup(name); f != nil {
				annotate(f, kindAnnotation, group, kind[0])
			}
		}
	}
}

// commandLineOnly are flags that no variable sets, of any command: they destroy something, or answer a question.
var commandLineOnly = []string{"help", "version", "yes", "force", "replace", "fresh"}

func annotate(f *pflag.Flag, key string, values ...string) {
	if f.Annotations == nil {
		f.Annotations = make(map[string][]string)
	}
	f.Annotations[key] = values
}

// Origin returns how messages name a flag: the variable or the line of the file that set it, else --flag.
func Origin(flags *pflag.FlagSet, name string) string {
	if f := flags.Lookup(name); f != nil && len(f.Annotations[originAnnotation]) > 0 {
		return f.Annotations[originAnnotation][0]
	}
	return "--" + name
}

// Setting is a value for a flag from another place than the command line.
type Setting struct {
	Flag, Value string
	From        string // the variable, or the line of a file, for messages
}

// isOff reports whether a value is the same as not to give the flag.
func isOff(f *pflag.Flag, value string) bool {
	return value == "" || f.Value.Type() == "bool" && (value == "0" || strings.EqualFold(value, "false"))
}

// Apply sets the flags that no earlier place has set, and of which no earlier place has set another kind ([Exclusive]).
func Apply(flags *pflag.FlagSet, settings []Setting) error {
	earlier := make(map[string]string) // group → kind
	flags.VisitAll(func(f *pflag.Flag) {
		if k := f.Annotations[kindAnnotation]; len(k) == 2 && f.Changed && !isOff(f, f.Value.String()) {
			earlier[k[0]] = k[1]
		}
	})
	settings = slices.DeleteFunc(slices.Clone(settings), func(s Setting) bool {
		f := flags.Lookup(s.Flag)
		k := f.Annotations[kindAnnotation]
		return f.Changed || len(k) == 2 && earlier[k[0]] != "" && (earlier[k[0]] != k[1] || isOff(f, s.Value))
	})
	first := make(map[string]Setting) // group → the first setting
	var problems []string
	for _, s := range settings {
		f := flags.Lookup(s.Flag)
		if k := f.Annotations[kindAnnotation]; len(k) == 2 && !isOff(f, s.Value) {
			if other, ok := first[k[0]]; !ok {
				first[k[0]] = s
			} else if flags.Lookup(other.Flag).Annotations[kindAnnotation][1] != k[1] {
				problems = append(problems, fmt.Sprintf("%s and %s are both set and exclude each other: unset one, "+
					"or give --%s or --%s on the command line", other.From, s.From, other.Flag, s.Flag))
			}
		}
	}
	if len(problems) > 0 {
		return Usagef("%s", problems[0])
	}
	for _, s := range settings {
		if err := flags.Set(s.Flag, s.Value); err != nil {
			problems = append(problems, fmt.Sprintf("%s=%q: %v", s.From, s.Value, err))
			continue
		}
		annotate(flags.Lookup(s.Flag), originAnnotation, s.From)
	}
	if len(problems) > 0 {
		return Usagef("%s", strings.Join(problems, "\n"))
	}
	return nil
}

// FromEnvironment sets the flags of cmd that are not on the command line and whose variables are set: all flags of a
// command that runs a process (runs), and of any other command only those that it has from its parents: how to reach
// the cluster, and what to print. What such a command does is on its command line alone. Errors name the variables.
func FromEnvironment(cmd *cobra.Command, runs bool) error {
	var settings []Setting
	visit := func(f *pflag.Flag) {
		value, ok := os.LookupEnv(envName(f.Name))
		if ok && !slices.Contains(commandLineOnly, f.Name) {
			settings = append(settings, Setting{f.Name, value, envName(f.Name)})
		}
	}
	if runs {
		cmd.Flags().VisitAll(visit)
	} else {
		cmd.InheritedFlags().VisitAll(visit)
	}
	return Apply(cmd.Flags(), settings)
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
