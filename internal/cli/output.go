package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"go.yaml.in/yaml/v3"
)

// Values of --output.
const (
	FormatTable = "table"
	FormatWide  = "wide"
	FormatJSON  = "json"
	FormatYAML  = "yaml"
)

// JSONSchema names the contract of all JSON that rowraft prints.
const JSONSchema = "rowraft/v1"

// CheckFormat returns a usage error for an unknown value of --output.
func CheckFormat(name string) error {
	formats := []string{FormatTable, FormatWide, FormatJSON, FormatYAML}
	if !slices.Contains(formats, name) {
		return Usagef("output format %q: want %s%s", name, strings.Join(formats, ", "), DidYouMean("", name, formats))
	}
	return nil
}

// Show writes v as JSON or YAML, or calls forPeople.
func Show(w io.Writer, format string, v any, forPeople func(w io.Writer, wide bool) error) error {
	switch format {
	case FormatJSON:
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	case FormatYAML:
		return WriteYAML(w, v)
	}
	return forPeople(w, format == FormatWide)
}

// WriteJSON writes v to the file called name, indented; "-" is standard output.
func WriteJSON(name string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if name == "-" {
		_, err = os.Stdout.Write(text)
		return err
	}
	return os.WriteFile(name, text, 0o644)
}

// WriteYAML writes the JSON of v as YAML, so that both have the same fields in the same order.
func WriteYAML(w io.Writer, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return err
	}
	plain(&doc)
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		return err
	}
	return enc.Close()
}

// plain removes the JSON style of n. Strings that YAML would read as numbers keep their quotes.
func plain(n *yaml.Node) {
	if n.Kind != yaml.ScalarNode {
		n.Style = 0
	} else if n.Tag == "!!str" {
		n.Style = 0
	}
	for _, c := range n.Content {
		plain(c)
	}
}

// Facts writes lines with a name and a value each.
func Facts(w io.Writer, pairs ...string) error {
	width := 0
	for i := 0; i < len(pairs); i += 2 {
		width = max(width, len(pairs[i]))
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if _, err := fmt.Fprintf(w, "%-*s  %s\n", width, pairs[i], pairs[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// Count formats n with commas.
func Count(n uint64) string { return humanize.Comma(int64(n)) }

// Rows formats n as "1 row" or "1,234 rows".
func Rows(n uint64) string {
	if n == 1 {
		return "1 row"
	}
	return Count(n) + " rows"
}

// Size formats n bytes in KiB, MiB and so on.
func Size(n uint64) string { return humanize.IBytes(n) }

// Ago formats d as "1.5s ago".
func Ago(d time.Duration) string { return fmt.Sprintf("%.1fs ago", d.Seconds()) }

// Plural formats n and noun as "1 server" or "3 servers".
func Plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// OrList formats names as "a, b or c".
func OrList(names []string) string {
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}
