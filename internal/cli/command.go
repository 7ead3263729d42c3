package cli

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// MakeGroup makes cmd, and all group commands below it, refuse an unknown command name and suggest the nearest one.
func MakeGroup(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		if sub.HasSubCommands() && sub.RunE == nil {
			MakeGroup(sub)
		}
	}
	if cmd.Example == "" {
		cmd.Example = examplesBelow(cmd)
	}
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		instead := cmd.Annotations[Instead+args[0]]
		if name := nameHere(cmd, args[0]); instead == "" && name != "" {
			instead = "`" + cmd.CommandPath() + " " + name + "`"
		}
		if instead != "" {
			return Usagef("unknown command %q for %q: use %s", args[0], cmd.CommandPath(), instead)
		}
		return Usagef("unknown command %q for %q%s; `%s --help` lists the commands",
			args[0], cmd.CommandPath(), DidYouMean("", args[0], namesBelow(cmd)), cmd.CommandPath())
	}
}

// namesBelow returns the names of the commands below cmd that people see.
func namesBelow(cmd *cobra.Command) []string {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return names
}

// nameHere returns the name that a command below cmd has for what other tools call got, or an empty string.
func nameHere(cmd *cobra.Command, got string) string {
	names := namesBelow(cmd)
	for _, name := range otherNames[got] {
		if slices.Contains(names, name) {
			return name
		}
	}
	return ""
}

// Instead begins the key of an annotation of a group command: the rest is a name that people try, the value says what
// to type instead.
const Instead = "instead of "

// otherNames are the names that other tools give to common commands, with our names for them: the first that a group
// has counts.
var otherNames = map[string][]string{
	"ls": {"list"}, "get": {"describe", "status"}, "show": {"describe", "status"}, "inspect": {"describe", "status"},
	"info": {"describe", "status"}, "describe": {"status"}, "rm": {"delete", "decommission"},
	"remove": {"delete", "decommission"}, "delete": {"decommission"}, "drop": {"delete"}, "add": {"create"},
	"new": {"create"}, "make": {"create"}, "cancel": {"stop"}, "follow": {"watch"}, "tail": {"watch"}, "up": {"start"},
	"health": {"status"}, "check": {"status"},
}

// examplesBelow returns the first example of each command below cmd.
func examplesBelow(cmd *cobra.Command) string {
	var lines []string
	for _, sub := range cmd.Commands() {
		for line := range strings.Lines(sub.Example) {
			if line = strings.TrimSuffix(line, "\n"); strings.HasPrefix(strings.TrimSpace(line), cmd.CommandPath()) &&
				!strings.HasSuffix(line, "\\") {
				lines = append(lines, line)
				break
			}
		}
	}
	return strings.Join(lines, "\n")
}

// strconvError is what pflag's error has of the package that parses numbers.
var strconvError = regexp.MustCompile(`strconv\.\w+: parsing ".*": `)

// FlagError adds the nearest flag to pflag's error.
func FlagError(cmd *cobra.Command, err error) error {
	suggestion := ""
	if name, ok := strings.CutPrefix(err.Error(), "unknown flag: --"); ok {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		suggestion = DidYouMean("--", name, names)
	}
	if text := strconvError.ReplaceAllString(err.Error(), ""); text != err.Error() {
		err = errors.New(text)
	}
	return Usagef("%w%s; `%s --help` lists the flags", err, suggestion, cmd.CommandPath())
}

// DidYouMean returns a text with the nearest of names, or an empty string.
func DidYouMean(prefix, got string, names []string) string {
	best, bestDistance := "", max(len(got)/3, 1)+1
	for _, n := range names {
		if d := editDistance(got, n); d < bestDistance {
			best, bestDistance = n, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", prefix+best)
}

// editDistance counts the bytes to insert, delete, change or swap with the next to turn a into b.
func editDistance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// nameBelowRoot returns the path of cmd without the name of the binary, which begins every printed error.
func nameBelowRoot(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

// NoArgs returns a usage error if there are positional arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if name := nameHere(cmd, args[0]); name != "" {
		return Usagef("%s: unexpected argument %q: use `%s %s`", nameBelowRoot(cmd), args[0], cmd.CommandPath(), name)
	}
	return Usagef("%s: unexpected argument %q%s", nameBelowRoot(cmd), args[0], DidYouMean("", args[0], namesBelow(cmd)))
}

// OneArg returns a usage error unless there is exactly one positional argument; what names it.
func OneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return Usagef("%s: want one argument, %s; got %d", nameBelowRoot(cmd), what, len(args))
		}
		return nil
	}
}
