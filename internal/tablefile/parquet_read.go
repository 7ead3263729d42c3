package tablefile

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/parquetguard"
)

// parquetReader reads a column of ids and a column of lists, which all have the same length.
type parquetReader struct {
	file    *parquet.File
	dim     int
	meta    Meta
	typ     number
	ids     columnReader
	vectors columnReader
}

func openParquet(r io.ReaderAt, size int64, ids, vectors string) (p *parquetReader, err error) {
	if err := parquetguard.CheckFooter(r, size); err != nil {
		return nil, err
	}
	p = &parquetReader{}
	defer caught(&err)
	if p.file, err = parquet.OpenFile(r, size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true)); err != nil {
		return nil, corruptf("Parquet: %w", err)
	}
	if err := p.columns(ids, vectors); err != nil {
		return nil, err
	}
	if err := p.checkGroups(r, size); err != nil {
		return nil, err
	}
	p.meta = metaFrom(func(name string) string { v, _ := p.file.Lookup(name); return v })
	return p, p.findDim()
}

// caught converts a panic of the library, which some damage to a file causes, to an error.
func caught(err *error) {
	if r := recover(); r != nil {
		*err = corruptf("Parquet: %v", r)
	}
}

// columns finds the two columns and checks their types.
func (p *parquetReader) columns(ids, vectors string) error {
	root := p.file.Root()
	id, vector := root.Column(ids), root.Column(vectors)
	if id == nil || vector == nil {
		var names []string
		for _, c := range root.Columns() {
			names = append(names, c.Name())
		}
		return invalidf("it has no columns %q and %q, but %.200q", ids, vectors, fmt.Sprint(names))
	}
	if !id.Leaf() || id.Type().Kind() != parquet.Int64 || id.Repeated() {
		return invalidf("column %q is %s: want int64 or uint64", ids, typeName(id))
	}
	leaf := vector
	for !leaf.Leaf() {
		inner := leaf.Columns()
		if len(inner) != 1 {
			return invalidf("column %q is no list of numbers", vectors)
		}
		leaf = inner[0]
	}
	switch leaf.Type().Kind() {
	case parquet.Float:
		p.typ = f32
	case parquet.Double:
		p.typ = f64
	}
	if p.typ == 0 || leaf.MaxRepetitionLevel() != 1 {
		return invalidf("column %q is %s: want a list of float or double", vectors, typeName(vector))
	}
	p.ids.init(p.file, id)
	p.vectors.init(p.file, leaf)
	return nil
}

func typeName(c *parquet.Column) string {
	if !c.Leaf() {
		return "a group"
	}
	return strings.ToLower(c.Type().String())
}

// checkGroups checks every page header of the two columns, and that the columns are as long as their groups.
func (p *parquetReader) checkGroups(r io.ReaderAt, size int64) error {
	m := p.file.Metadata()
	rows := int64(0)
	for i := range m.RowGroups {
		g := &m.RowGroups[i]
		rows += g.NumRows
		if g.NumRows < 0 || rows < 0 || max(p.ids.index, p.vectors.index) >= len(g.Columns) {
			return corruptf("row group %d is damaged", i)
		}
		if g.NumRows == 0 {
			continue // an empty group is not read; pyarrow gives its columns no position
		}
		ids, numbers := g.Columns[p.ids.index].MetaData.NumValues, g.Columns[p.vectors.index].MetaData.NumValues
		if ids != g.NumRows || numbers < g.NumRows {
			return corruptf("row group %d has %d ids and %d numbers for %d rows", i, ids, numbers, g.NumRows)
		}
		for _, c := range []*format.ColumnChunk{&g.Columns[p.ids.index], &g.Columns[p.vectors.index]} {
			if err := parquetguard.CheckPages(r, size, &c.MetaData); err != nil {
				return fmt.Errorf("row group %d: %w", i, err)
			}
		}
	}
	if m.NumRows != rows {
		return corruptf("it is said to have %d rows, its groups have %d", m.NumRows, rows)
	}
	return nil
}

// findDim returns the length of the first list, or the dim in the metadata if there is no list.
func (p *parquetReader) findDim() error {
	p.dim = p.meta.Dim
	if p.file.NumRows() == 0 {
		return nil
	}
	n := uint64(0)
	for {
		v, err := p.vectors.peek()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if n > 0 && v.RepetitionLevel() == 0 || n > rowraft.MaxDim {
			break
		}
		if v.IsNull() {
			return invalidf("the vector of row 0 is null, or has a null in it")
		}
		n++
		p.vectors.drop()
	}
	dim, err := checkDim(n)
	if err != nil {
		return err
	}
	p.dim = dim
	return p.rewind()
}

func (p *parquetReader) info() Info {
	return Info{Rows: uint64(p.file.NumRows()), Dim: p.dim, Numbers: p.typ.String(), Meta: p.meta}
}

func (p *parquetReader) rewind() error {
	return errors.Join(p.ids.rewind(), p.vectors.rewind())
}

func (p *parquetReader) Close() error { return p.rewind() }

func (p *parquetReader) nextKeys(keys []rowraft.Key) (n int, err error) {
	defer caught(&err)
	for n < len(keys) {
		v, err := p.ids.peek()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, fmt.Errorf("ids: %w", err)
		}
		if v.IsNull() {
			return 0, invalidf("row %d has no id", p.ids.row)
		}
		keys[n] = rowraft.Key(v.Uint64())
		n++
		p.ids.row++
		p.ids.drop()
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (p *parquetReader) next(keys []rowraft.Key, values []float32) (n int, err error) {
	if n, err = p.nextKeys(keys); err != nil {
		if errors.Is(err, io.EOF) {
			return 0, p.vectorsEnd()
		}
		return 0, err
	}
	defer caught(&err)
	for row := range n {
		if err := p.nextVector(values[row*p.dim : (row+1)*p.dim]); err != nil {
			return 0, fmt.Errorf("row %d (id %d): %w", p.vectors.row, keys[row], err)
		}
		p.vectors.row++
	}
	return n, nil
}

// nextVector reads one complete list.
func (p *parquetReader) nextVector(dst []float32) error {
	for i := range dst {
		v, err := p.vectors.peek()
		if errors.Is(err, io.EOF) {
			return corruptf("it has an id and no vector")
		}
		if err != nil {
			return err
		}
		if first := v.RepetitionLevel() == 0; first != (i == 0) {
			return invalidf("its vector has %d numbers, that of row 0 has %d", i, p.dim)
		}
		if v.IsNull() {
			return invalidf("its vector is null, or has a null in it")
		}
		if p.typ == f64 {
			dst[i] = float32(v.Double())
		} else {
			dst[i] = v.Float()
		}
		p.vectors.drop()
	}
	if v, err := p.vectors.peek(); err == nil && v.RepetitionLevel() != 0 {
		return invalidf("its vector has more than the %d numbers of row 0", p.dim)
	} else if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// vectorsEnd returns io.EOF if there are no vectors left either.
func (p *parquetReader) vectorsEnd() (err error) {
	defer caught(&err)
	if _, err := p.vectors.peek(); err == nil {
		return corruptf("it has more vectors than ids")
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	return io.EOF
}

// columnReader reads the values of one leaf column, page by page.
type columnReader struct {
	file  *parquet.File
	index int

	group  int // the next group
	pages  parquet.Pages
	page   parquet.Page
	values parquet.ValueReader
	buf    []parquet.Value // read but not yet used
	at     int
	room   []parquet.Value
	row    uint64 // number of the row, for callers
}

func (c *columnReader) init(f *parquet.File, column *parquet.Column) {
	c.file, c.index, c.room = f, column.Index(), make([]parquet.Value, 1024)
}

// peek returns the next value.
func (c *columnReader) peek() (parquet.Value, error) {
	for c.at == len(c.buf) {
		if err := c.more(); err != nil {
			return parquet.Value{}, err
		}
	}
	return c.buf[c.at], nil
}

func (c *columnReader) drop() { c.at++ }

// more reads values of the page, or opens the next page or group.
func (c *columnReader) more() error {
	if c.values != nil {
		n, err := c.values.ReadValues(c.room)
		c.buf, c.at = c.room[:n], 0
		if err != nil && !errors.Is(err, io.EOF) {
			return corruptf("Parquet: %w", err)
		}
		if err != nil || n == 0 {
			c.endPage()
		}
		return nil
	}
	if c.pages == nil {
		groups := c.file.RowGroups()
		for c.group < len(groups) && groups[c.group].NumRows() == 0 {
			c.group++
		}
		if c.group == len(groups) {
			return io.EOF
		}
		c.pages = groups[c.group].ColumnChunks()[c.index].Pages()
		c.group++
	}
	page, err := c.pages.ReadPage()
	if errors.Is(err, io.EOF) {
		return c.endGroup()
	}
	if err != nil {
		return corruptf("Parquet: %w", err)
	}
	c.page, c.values = page, page.Values()
	return nil
}

func (c *columnReader) endPage() {
	parquet.Release(c.page)
	c.page, c.values = nil, nil
}

func (c *columnReader) endGroup() error {
	err := c.pages.Close()
	c.pages = nil
	return err
}

// rewind returns to the first value and closes what is open.
func (c *columnReader) rewind() (err error) {
	if c.page != nil {
		c.endPage()
	}
	if c.pages != nil {
		err = c.endGroup()
	}
	c.group, c.row, c.buf, c.at = 0, 0, nil, 0
	return err
}
