package cli

import (
	"io"
	"os"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"
)

// NewBox returns a table of names and values with lines around them, for w. On a terminal it fits the width: long
// values take several lines.
func NewBox(w io.Writer) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	if IsTerminal(w) {
		if width, _, err := term.GetSize(int(w.(*os.File).Fd())); err == nil {
			fitBox(t, width)
		}
	}
	return t
}

// nameWidth is that of the longest name in a box.
const nameWidth = 18

func fitBox(t table.Writer, width int) {
	const lines = 7 // columns of the lines with their spaces
	t.SetColumnConfigs([]table.ColumnConfig{{Number: 1, WidthMax: nameWidth, WidthMaxEnforcer: text.WrapSoft},
		{Number: 2, WidthMax: max(width-nameWidth-lines, 20), WidthMaxEnforcer: text.WrapSoft}})
}
