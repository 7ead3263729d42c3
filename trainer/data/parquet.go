package data

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sort"
	"strconv"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"github.com/rowraft/rowraft/internal/parquetguard"
	"github.com/rowraft/rowraft/trainer/data/number"
)

// rowsBlock is the number of rows of a block of [ShuffleExamples]: to find a row costs more than in a text file,
// because its pages are decoded from their beginning.
const rowsBlock = 8192

// parquetReader reads the rows of a Parquet file. It implements reader.
type parquetReader struct {
	in     *input
	enc    *Encoder
	file   *os.File
	parsed *parquet.File
	starts []int64 // first row of each row group, and the number of all
	at     int64   // number of the next row

	labels, dense, category, weights []*parquetColumn // weights has nil for features without
	all                              []*parquetColumn
	row                              []float32 // scratch: weights of a feature
	text                             []byte    // scratch: a number as text
}

// indexParquet counts the rows of an input and checks their labels. It reads no other column.
func (f *Files) indexParquet(in *input) error {
	in.rows = true
	labels := *f.schema
	labels.Dense, labels.Categorical = nil, nil
	r, err := openParquet(in, &labels)
	if err != nil {
		return err
	}
	defer r.close()
	rows := r.starts[len(r.starts)-1]
	b := NewBatch(1, labels.Shape())
	bad := int64(0)
	for in.size < rows {
		b.Reset()
		err := r.read(b)
		in.size++
		switch {
		case err == nil:
			f.labels.add(r.text, b.Labels)
		case !isBadLine(err) || f.opt.MaxBad == 0:
			return err
		default:
			if bad++; float64(bad) > f.opt.MaxBad*float64(max(in.size, badOf)) {
				return f.tooMany(err, bad, in.size)
			}
		}
	}
	return nil
}

// openParquet opens a file for the columns of a schema.
func openParquet(in *input, s *Schema) (_ *parquetReader, err error) {
	file, err := os.Open(in.path)
	if err != nil {
		return nil, invalid("data: %w", err)
	}
	r := &parquetReader{in: in, enc: NewEncoder(s), file: file, starts: []int64{0}}
	defer func() {
		if err != nil {
			r.close()
			err = invalid("%s: %w", in.path, err)
		}
	}()
	defer caught(&err)
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if err := parquetguard.CheckFooter(file, info.Size()); err != nil {
		return nil, err
	}
	if r.parsed, err = parquet.OpenFile(file, info.Size(), parquet.SkipPageIndex(true),
		parquet.SkipBloomFilters(true)); err != nil {
		return nil, err
	}
	for _, g := range r.parsed.RowGroups() {
		if g.NumRows() < 0 {
			return nil, errors.New("a row group with a negative number of rows")
		}
		r.starts = append(r.starts, r.starts[len(r.starts)-1]+g.NumRows())
	}
	for i := range s.Labels {
		if s.Unlabelled {
			break
		}
		if err := r.find(&r.labels, s.Labels[i].Column, false); err != nil {
			return nil, err
		}
	}
	for i := range s.Dense {
		if err := r.find(&r.dense, s.Dense[i].Column, false); err != nil {
			return nil, err
		}
	}
	for i := range s.Categorical {
		c := &s.Categorical[i]
		if err := r.find(&r.category, c.Column, true); err != nil {
			return nil, err
		}
		if c.Weights == nil {
			r.weights = append(r.weights, nil)
		} else if err := r.find(&r.weights, *c.Weights, true); err != nil {
			return nil, err
		}
	}
	return r, r.checkGroups(info.Size())
}

// caught converts a panic of the library, which some damage to a file causes, to an error.
func caught(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the file is damaged: %v", p)
	}
}

// caught is the function caught, for a reader that is open.
func (r *parquetReader) caught(err *error) {
	if p := recover(); p != nil {
		*err = invalid("%s: row %d: the file is damaged: %v", r.in.path, r.at, p)
	}
}

// find adds the column that c names; lists says whether it may be a list.
func (r *parquetReader) find(to *[]*parquetColumn, c Column, lists bool) error {
	root := r.parsed.Root()
	var column *parquet.Column
	if c.Column != "" {
		column = root.Column(c.Column)
	} else if all := root.Columns(); c.Position <= len(all) {
		column = all[c.Position-1]
	}
	if column == nil {
		var names []string
		for _, c := range root.Columns() {
			names = append(names, c.Name())
		}
		return fmt.Errorf("it has no %s; it has %q", columnText(c), names)
	}
	leaf := column
	for !leaf.Leaf() {
		inner := leaf.Columns()
		if len(inner) != 1 {
			return fmt.Errorf("%s is neither a value nor a list of values", c)
		}
		leaf = inner[0]
	}
	if leaf.MaxRepetitionLevel() > 1 || leaf.MaxRepetitionLevel() == 1 && !lists {
		return fmt.Errorf("%s is a list: want single values, or one list of values of a categorical feature", c)
	}
	p := &parquetColumn{column: c, file: r.parsed, index: leaf.Index(), lists: leaf.MaxRepetitionLevel() == 1,
		room: make([]parquet.Value, 512)}
	if t := leaf.Type().LogicalType(); t != nil {
		if n, ok := t.Value.(*format.IntType); ok {
			p.unsigned = !n.IsSigned
		}
	}
	*to = append(*to, p)
	r.all = append(r.all, p)
	return nil
}

func columnText(c Column) string {
	if c.Column != "" {
		return fmt.Sprintf("column %q", c.Column)
	}
	return c.String()
}

// checkGroups checks every page header of the columns.
func (r *parquetReader) checkGroups(size int64) error {
	groups := r.parsed.Metadata().RowGroups
	for i := range groups {
		if groups[i].NumRows == 0 {
			continue
		}
		for _, c := range r.all {
			if c.index >= len(groups[i].Columns) {
				return fmt.Errorf("row group %d has no %s", i, columnText(c.column))
			}
			if err := parquetguard.CheckPages(r.file, size, &groups[i].Columns[c.index].MetaData); err != nil {
				return fmt.Errorf("row group %d: %s: %w", i, c.column, err)
			}
		}
	}
	return nil
}

func (r *parquetReader) number() int64 { return r.at }

func (r *parquetReader) seek(number int64) (err error) {
	if number < r.at || number > r.at+rowsBlock {
		defer r.caught(&err)
		group := sort.Search(len(r.starts)-1, func(i int) bool { return r.starts[i+1] > number })
		if group == len(r.starts)-1 {
			return io.EOF
		}
		for _, c := range r.all {
			if err := c.seek(group, number-r.starts[group]); err != nil {
				return invalid("%s: row %d: %w", r.in.path, number+1, err)
			}
		}
		r.at = number
	}
	for r.at < number {
		if err := r.skip(); err != nil {
			return err
		}
	}
	return nil
}

func (r *parquetReader) skip() (err error) {
	defer r.caught(&err)
	r.at++
	for _, c := range r.all {
		if err := c.row(func(parquet.Value) error { return nil }); err != nil {
			return r.failed(c, err)
		}
	}
	return nil
}

// failed returns an error in a column of the row last read.
func (r *parquetReader) failed(c *parquetColumn, err error) error {
	if err == io.EOF {
		return err
	}
	return invalid("%s: row %d: %s: %w", r.in.path, r.at, c.column, err)
}

func (r *parquetReader) read(b *Batch) (err error) {
	defer r.caught(&err)
	keys := len(b.Keys)
	r.at++
	var wrong error // the first value that the schema does not allow; the rest of the row is read, too
	note := func(err error) {
		if wrong == nil && err != nil {
			wrong = badLine{invalid("%s: row %d: %w", r.in.path, r.at, err)}
		}
	}
	n := b.N
	for i, c := range r.dense {
		err := c.row(func(v parquet.Value) (err error) {
			b.Dense[n*len(r.dense)+i], err = r.number32(i, v)
			note(err)
			return nil
		})
		if err != nil {
			return r.failed(c, err)
		}
	}
	for i, c := range r.category {
		if err := r.feature(i, c, b, note); err != nil {
			return err
		}
		b.Offsets[n*len(r.category)+i+1] = int32(len(b.Keys))
	}
	if r.enc.schema.Unlabelled {
		clear(b.Labels[n*r.enc.shape.Labels:][:r.enc.shape.Labels])
	}
	for i, c := range r.labels {
		err := c.row(func(v parquet.Value) (err error) {
			b.Labels[n*len(r.labels)+i], err = r.enc.label(i, r.bytes(c, v))
			note(err)
			return nil
		})
		if err != nil {
			return r.failed(c, err)
		}
	}
	if wrong != nil {
		b.undo(keys)
		return wrong
	}
	b.N++
	return nil
}

// feature appends the values of categorical feature i.
func (r *parquetReader) feature(i int, c *parquetColumn, b *Batch, note func(error)) error {
	f := &r.enc.schema.Categorical[i]
	r.row = r.row[:0]
	if w := r.weights[i]; w != nil {
		err := w.row(func(v parquet.Value) error {
			x, ok := parquetNumber(v)
			if !v.IsNull() {
				if !ok || math.IsInf(float64(float32(x)), 0) {
					note(errNumber(*f.Weights, r.bytes(w, v)))
				}
				r.row = append(r.row, float32(x))
			}
			return nil
		})
		if err != nil {
			return r.failed(w, err)
		}
	}
	first, at := len(b.Keys), 0
	err := c.row(func(v parquet.Value) error {
		if v.IsNull() && c.lists {
			return nil // an empty list, or an empty place in one
		}
		text := r.bytes(c, v)
		if !c.lists && f.Separator != "" && f.Weights == nil {
			note(r.enc.Categorical(i, text, nil, b))
			return nil
		}
		w := float32(1)
		if f.Weights != nil {
			if at == len(r.row) {
				note(fmt.Errorf("%s: fewer numbers than %s has values", *f.Weights, f.Column))
				return nil
			}
			w = r.row[at]
			at++
		}
		note(r.enc.One(i, text, w, b))
		return nil
	})
	if err != nil {
		return r.failed(c, err)
	}
	if at < len(r.row) {
		note(fmt.Errorf("%s: more numbers than %s has values", *f.Weights, f.Column))
	}
	r.enc.Cut(i, first, b)
	return nil
}

// number32 returns the value of numeric feature i.
func (r *parquetReader) number32(i int, v parquet.Value) (float32, error) {
	d := &r.enc.schema.Dense[i]
	if v.IsNull() {
		return float32(d.Missing), nil
	}
	switch v.Kind() {
	case parquet.ByteArray, parquet.FixedLenByteArray:
		return r.enc.Dense(i, v.ByteArray())
	}
	x, ok := parquetNumber(v)
	if x != x { // pandas stores a missing number as NaN
		return float32(d.Missing), nil
	}
	value := d.value(x)
	if !ok || isInf(value) {
		return 0, errNumber(d.Column, r.bytes(r.dense[i], v))
	}
	return value, nil
}

// parquetNumber returns a finite number.
func parquetNumber(v parquet.Value) (x float64, ok bool) {
	switch v.Kind() {
	case parquet.Boolean:
		if v.Boolean() {
			x = 1
		}
	case parquet.Int32:
		x = float64(v.Int32())
	case parquet.Int64:
		x = float64(v.Int64())
	case parquet.Float:
		x = float64(v.Float())
	case parquet.Double:
		x = v.Double()
	default:
		return number.Parse(v.ByteArray())
	}
	return x, !math.IsNaN(x) && !math.IsInf(x, 0)
}

// bytes returns a value as a text file has it: integers and numbers in decimal, true as 1, null as nothing. It is valid
// until the next call.
func (r *parquetReader) bytes(c *parquetColumn, v parquet.Value) []byte {
	r.text = r.text[:0]
	switch {
	case v.IsNull():
	case v.Kind() == parquet.Boolean && v.Boolean():
		r.text = append(r.text, '1')
	case v.Kind() == parquet.Boolean:
		r.text = append(r.text, '0')
	case v.Kind() == parquet.Int32 && c.unsigned:
		r.text = strconv.AppendUint(r.text, uint64(v.Uint32()), 10)
	case v.Kind() == parquet.Int32:
		r.text = strconv.AppendInt(r.text, int64(v.Int32()), 10)
	case v.Kind() == parquet.Int64 && c.unsigned:
		r.text = strconv.AppendUint(r.text, v.Uint64(), 10)
	case v.Kind() == parquet.Int64:
		r.text = strconv.AppendInt(r.text, v.Int64(), 10)
	case v.Kind() == parquet.Float && v.Float() == v.Float():
		r.text = strconv.AppendFloat(r.text, float64(v.Float()), 'f', -1, 32)
	case v.Kind() == parquet.Double && v.Double() == v.Double():
		r.text = strconv.AppendFloat(r.text, v.Double(), 'f', -1, 64)
	case v.Kind() == parquet.ByteArray || v.Kind() == parquet.FixedLenByteArray:
		r.text = append(r.text, v.ByteArray()...)
	}
	return r.text
}

func (r *parquetReader) close() error {
	var errs []error
	for _, c := range r.all {
		errs = append(errs, c.close())
	}
	return errors.Join(append(errs, r.file.Close())...)
}

// parquetColumn reads the values of one leaf column, page by page.
type parquetColumn struct {
	column          Column
	file            *parquet.File
	index           int
	lists, unsigned bool

	group  int // the next group
	pages  parquet.Pages
	page   parquet.Page
	values parquet.ValueReader
	buf    []parquet.Value // read but not yet used
	at     int
	room   []parquet.Value
}

// row calls f with each value of the next row; a null stands for no value.
func (c *parquetColumn) row(f func(parquet.Value) error) error {
	for first := true; ; first = false {
		for c.at == len(c.buf) {
			if err := c.more(); err == io.EOF && !first {
				return nil
			} else if err != nil {
				return err
			}
		}
		v := c.buf[c.at]
		if !first && v.RepetitionLevel() == 0 {
			return nil
		}
		c.at++
		if err := f(v); err != nil || !c.lists {
			return err
		}
	}
}

// more reads values of the page, or opens the next page or group.
func (c *parquetColumn) more() error {
	if c.values != nil {
		n, err := c.values.ReadValues(c.room)
		c.buf, c.at = c.room[:n], 0
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if n == 0 {
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
		err = c.pages.Close()
		c.pages = nil
		return err
	}
	if err != nil {
		return err
	}
	c.page, c.values = page, page.Values()
	return nil
}

func (c *parquetColumn) endPage() {
	parquet.Release(c.page)
	c.page, c.values = nil, nil
}

// seek continues at a row of a group.
func (c *parquetColumn) seek(group int, row int64) error {
	if err := c.close(); err != nil {
		return err
	}
	c.pages = c.file.RowGroups()[group].ColumnChunks()[c.index].Pages()
	c.group = group + 1
	return c.pages.SeekToRow(row)
}

func (c *parquetColumn) close() (err error) {
	if c.page != nil {
		c.endPage()
	}
	if c.pages != nil {
		err = c.pages.Close()
		c.pages = nil
	}
	c.buf, c.at = nil, 0
	return err
}
