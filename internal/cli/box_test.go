package cli

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"
)

func TestABoxFitsItsTerminal(t *testing.T) {
	var out bytes.Buffer
	box := NewBox(&out)
	fitBox(box, 80)
	box.AppendRow(table.Row{"why not the GPU", strings.Repeat("no plugin is here, ", 9)})
	box.AppendRow(table.Row{"/usr/lib/x86_64-linux-gnu/libcudart.so", "checkpoints/" + strings.Repeat("x", 90)})
	box.Render()
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("a line of %d columns: %s", n, line)
		}
	}
}
