package server

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/rowraft/rowraft/internal/cli"
)

// fromFile sets flags from a YAML file, whose keys are names of flags. It skips the flags that were given on the
// command line or in the environment.
func fromFile(flags *pflag.FlagSet, path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return cli.Usagef("configuration: %w", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return cli.Usagef("configuration %s: %w", path, err)
	}
	if len(doc.Content) == 0 {
		return nil // an empty file
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return cli.Usagef("configuration %s: line %d: want lines of `flag: value`", path, top.Line)
	}
	seen := make(map[string]bool)
	var settings []cli.Setting
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		at := fmt.Sprintf("configuration %s: line %d", path, key.Line)
		f := flags.Lookup(key.Value)
		switch {
		case f == nil || key.Value == "help" || key.Value == "config":
			return cli.Usagef("%s: unknown key %q%s", at, key.Value, cli.DidYouMean("", key.Value, flagNames(flags)))
		case seen[key.Value]:
			return cli.Usagef("%s: key %q is given twice", at, key.Value)
		}
		seen[key.Value] = true
		text, err := scalarText(value)
		if err != nil {
			return cli.Usagef("%s: key %q: %w", at, key.Value, err)
		}
		settings = append(settings, cli.Setting{Flag: key.Value, Value: text, From: fmt.Sprintf("%s: %s", at, key.Value)})
	}
	return cli.Apply(flags, settings)
}

func scalarText(n *yaml.Node) (string, error) {
	switch n.Kind {
	case yaml.ScalarNode:
		return n.Value, nil
	case yaml.SequenceNode:
		parts := make([]string, len(n.Content))
		for i, c := range n.Content {
			if c.Kind != yaml.ScalarNode {
				return "", errors.New("want a list of plain values")
			}
			parts[i] = c.Value
		}
		return strings.Join(parts, ","), nil
	}
	return "", errors.New("want a plain value or a list of them")
}

// secretFlags are the flags whose values are secret.
var secretFlags = []string{"token"}

// configPage returns the effective configuration, one line of YAML for each flag, without secrets.
func configPage(flags *pflag.FlagSet) string {
	var b strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		value, given := f.Value.String(), ""
		if slices.Contains(secretFlags, f.Name) && value != "" {
			value = "(not shown)"
		}
		if f.Changed {
			given = "  # given"
		}
		if f.Name != "help" {
			fmt.Fprintf(&b, "%s: %q%s\n", f.Name, value, given)
		}
	})
	return b.String()
}

func flagNames(flags *pflag.FlagSet) []string {
	var names []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" && f.Name != "config" {
			names = append(names, f.Name)
		}
	})
	return names
}
