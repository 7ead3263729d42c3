package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// TableWidth is the greatest width of a table that is not wide, in characters.
const TableWidth = 80

const columnGap = "  "

// Table is a table without lines. Unless it is wide, the text of its last column wraps at spaces, so that no line has
// more than [TableWidth] characters.
type Table struct {
	w       table.Writer
	wide    bool
	columns []table.ColumnConfig
	header  []string
	widths  []int // each column is as wide as its longest cell
	word    int   // longest word in the last column
}

// NewTable returns a table with two spaces between columns. right names the columns that are aligned right.
func NewTable(w io.Writer, wide bool, header []string, right ...string) *Table {
	t := &Table{w: table.NewWriter(), wide: wide, header: header}
	t.w.SetOutputMirror(w)
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", columnGap
	style.Format.Header = text.FormatDefault
	t.w.SetStyle(style)
	t.w.SuppressTrailingSpaces()
	row := make(table.Row, len(header))
	for i, h := range header {
		row[i] = h
		c := table.ColumnConfig{Number: i + 1, WidthMaxEnforcer: text.WrapSoft}
		if slices.Contains(right, h) {
			c.Align, c.AlignHeader = text.AlignRight, text.AlignRight
		}
		t.columns, t.widths = append(t.columns, c), append(t.widths, len(h))
	}
	t.w.AppendHeader(row)
	return t
}

// OnlyWide names columns that only a wide table shows. The last column is none of them.
func (t *Table) OnlyWide(header ...string) *Table {
	for i, h := range t.header {
		t.columns[i].Hidden = !t.wide && slices.Contains(header, h)
	}
	return t
}

// AppendRow adds a row, whose cells are formatted with %v.
func (t *Table) AppendRow(row table.Row) {
	for i, cell := range row {
		s := fmt.Sprint(cell)
		t.widths[i] = max(t.widths[i], text.LongestLineLen(s))
		if i == len(t.widths)-1 {
			for word := range strings.FieldsSeq(s) {
				t.word = max(t.word, text.StringWidth(word))
			}
		}
	}
	t.w.AppendRow(row)
}

// Render writes the table.
func (t *Table) Render() {
	last := len(t.columns) - 1
	left := TableWidth
	for i, w := range t.widths[:last] {
		if !t.columns[i].Hidden {
			left -= w + len(columnGap)
		}
	}
	if !t.wide && t.widths[last] > left {
		t.columns[last].WidthMax = max(left, t.word, len(t.header[last])) // a name or a path stays whole
	}
	t.w.SetColumnConfigs(t.columns)
	t.w.Render()
}
