package main

import (
	"strings"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/data"
)

// setting is one setting of a job's file that the command line changes: --set embeddings.lr=0.05.
type setting struct{ name, value string }

func (s setting) String() string { return s.name + "=" + s.value }

// parseSettings parses the values of --set.
func parseSettings(texts []string) (all []setting, err error) {
	seen := make(map[string]bool)
	for _, text := range texts {
		name, value, ok := strings.Cut(text, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		switch {
		case !ok || name == "" || value == "":
			return nil, cli.Usagef("--set %q: want KEY=VALUE, as embeddings.lr=0.05", text)
		case seen[name]:
			return nil, cli.Usagef("--set %s is given twice", name)
		}
		seen[name] = true
		all = append(all, setting{name, value})
	}
	return all, nil
}

// apply changes the setting in cfg. The value is YAML, as in a job's file. The error names the setting.
func (s setting) apply(cfg *trainer.Config) error {
	keys := strings.Split(s.name, ".")
	if keys[0] == "generator" && cfg.Generator == nil {
		g := data.DefaultGenerator()
		cfg.Generator = &g
	}
	var text strings.Builder
	for depth, key := range keys {
		text.WriteString("\n" + strings.Repeat(" ", depth) + key + ":")
	}
	text.WriteString(" " + s.value + "\n")
	if strings.ContainsAny(s.name+s.value, "\n#") {
		return cli.Usagef("--set %q: want a key and a value on one line, without #", s)
	}
	place := "--set " + s.String()
	err := data.DecodeYAML(place, []byte(text.String()), cfg)
	if err == nil {
		return nil
	}
	message := strings.TrimPrefix(err.Error(), place)
	if i := strings.Index(message, ": "); i >= 0 { // the line, which is in no file
		message = message[i+2:]
	}
	return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s: %s", place, message)
}

// values splits the value of a sweep at its commas. Commas in brackets, braces and quotes are part of a value.
func (s setting) values() []string {
	var out []string
	depth, from, quote := 0, 0, rune(0)
	for i, c := range s.value {
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		case c == ',' && depth == 0:
			out = append(out, strings.TrimSpace(s.value[from:i]))
			from = i + 1
		}
	}
	return append(out, strings.TrimSpace(s.value[from:]))
}
