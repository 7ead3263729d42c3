package data

import (
	"bytes"
	"fmt"
	"io"
	"slices"
)

// lineParser parses the lines of one file.
type lineParser struct {
	enc     *Encoder
	path    string
	line    *int64 // number of the line last read, for messages
	columns *columns

	ends   []int32  // of the values of a line without quotes, behind −1
	split  splitter // of a line with quotes
	tokens []token  // of a libsvm line
}

// columns is where a file has the values of a schema. Immutable.
type columns struct {
	separator                       byte
	header                          bool
	head                            []byte // the header; nil without one
	count                           int    // fields in each line
	labels, dense, category, weight []int  // positions, from 0; −1: labels that are not read, no weights
}

// errorf returns an error in the line last read.
func (p *lineParser) errorf(format string, args ...any) error {
	return invalid("%s:%d: %s", p.path, *p.line, fmt.Sprintf(format, args...))
}

// begin finds the columns by the first line of a file.
func (p *lineParser) begin(first []byte) error {
	s := p.enc.schema
	p.columns = &columns{separator: ','}
	c := p.columns
	if s.Indexed() {
		c.separator = '\t' // in front of what is added to a line
		return nil
	}
	if s.Separator != "" {
		c.separator = s.Separator[0]
	} else if bytes.IndexByte(first, '\t') >= 0 {
		c.separator = '\t'
	}
	if s.Header != nil {
		c.header = *s.Header
	} else { // criteo: a line of data starts with the label, which may be missing
		label, _, _ := bytes.Cut(first, []byte{c.separator})
		c.header = len(label) > 0 && string(label) != "0" && string(label) != "1"
	}
	if err := p.cut(first, 0); err != nil {
		return p.errorf("%v", err)
	}
	if c.header {
		c.head = bytes.Clone(first)
	}
	c.count = p.count()
	var names []string
	for i := range c.count {
		if c.header {
			names = append(names, s.headerName(string(p.value(i))))
		}
	}
	find := func(to *[]int, of Column) error {
		at, err := p.position(of, names)
		*to = append(*to, at)
		return err
	}
	for i := range s.Labels {
		if s.Unlabelled {
			c.labels = append(c.labels, -1)
		} else if err := find(&c.labels, s.Labels[i].Column); err != nil {
			return err
		}
	}
	for i := range s.Dense {
		if err := find(&c.dense, s.Dense[i].Column); err != nil {
			return err
		}
	}
	for i := range s.Categorical {
		f := &s.Categorical[i]
		if err := find(&c.category, f.Column); err != nil {
			return err
		}
		if f.Weights == nil {
			c.weight = append(c.weight, -1)
		} else if err := find(&c.weight, *f.Weights); err != nil {
			return err
		}
	}
	return nil
}

func (p *lineParser) position(c Column, names []string) (int, error) {
	if c.Column == "" {
		if c.Position > p.columns.count {
			return 0, p.errorf("%d columns, the schema wants column %d", p.columns.count, c.Position)
		}
		return c.Position - 1, nil
	}
	if names == nil {
		return 0, invalid("%s: the schema names column %q in a file without a header: use position", p.path, c.Column)
	}
	at := slices.Index(names, c.Column)
	if at < 0 {
		return 0, p.errorf("the header has no column %q; it has %q", c.Column, names)
	}
	return at, nil
}

// cut splits a line into values, at least the first most ones; 0: all.
func (p *lineParser) cut(line []byte, most int) error {
	s := p.enc.schema
	p.split.line, p.split.quoting = line, false
	if *s.Quotes && bytes.IndexByte(line, '"') >= 0 {
		p.split.separator, p.split.quotes, p.split.trim, p.split.most = p.columns.separator, true, s.Trim, most
		p.split.quoting = true
		_, err := p.split.split(line)
		return err
	}
	p.ends = cells(p.ends, line, p.columns.separator, most)
	return nil
}

func (p *lineParser) count() int {
	if p.split.quoting {
		return len(p.split.values)
	}
	return len(p.ends) - 1
}

// value returns a value of the line that was cut.
func (p *lineParser) value(i int) []byte {
	if p.split.quoting {
		return p.split.values[i]
	}
	v := p.split.line[p.ends[i]+1 : p.ends[i+1]]
	if p.enc.schema.Trim {
		v = bytes.Trim(v, " ")
	}
	return v
}

// example appends the example of a line to b. A wrong line is a badLine.
func (p *lineParser) example(line []byte, b *Batch) error {
	keys := len(b.Keys)
	var err error
	if p.enc.schema.Indexed() {
		err = p.indexed(line, b)
	} else {
		err = p.delimited(line, b)
	}
	if err != nil {
		b.undo(keys)
		return badLine{p.errorf("%v", err)}
	}
	b.Lines.add(p.columns, line)
	b.N++
	return nil
}

func (p *lineParser) delimited(line []byte, b *Batch) error {
	if err := p.cut(line, 0); err != nil {
		return err
	}
	c, e, n := p.columns, p.enc, b.N
	if p.count() != c.count {
		return fmt.Errorf("%d columns, expected %d", p.count(), c.count)
	}
	var err error
	for i, at := range c.labels {
		if at < 0 {
			b.Labels[n*len(c.labels)+i] = 0
		} else if b.Labels[n*len(c.labels)+i], err = e.label(i, p.value(at)); err != nil {
			return err
		}
	}
	for i, at := range c.dense {
		if b.Dense[n*len(c.dense)+i], err = e.Dense(i, p.value(at)); err != nil {
			return err
		}
	}
	offsets := b.Offsets[n*len(c.category)+1:]
	for i, at := range c.category {
		var weights []byte
		if w := c.weight[i]; w >= 0 {
			weights = p.value(w)
		}
		if err := e.Categorical(i, p.value(at), weights, b); err != nil {
			return err
		}
		offsets[i] = int32(len(b.Keys))
	}
	return nil
}

// labels writes the labels of a line to dst. It parses no more of the line than that needs.
func (p *lineParser) labels(line []byte, dst []float32) (first []byte, err error) {
	if p.enc.schema.Unlabelled {
		clear(dst)
		return nil, nil
	}
	if p.enc.schema.Indexed() {
		line, _ = cutByte(line, '#')
		value, _ := cutSpace(line)
		dst[0], err = p.enc.label(0, value)
	} else {
		most := slices.Max(p.columns.labels) + 1
		if err := p.cut(line, most); err != nil {
			return nil, badLine{p.errorf("%v", err)}
		}
		if p.count() < most {
			return nil, badLine{p.errorf("%d columns, expected %d", p.count(), p.columns.count)}
		}
		for i, at := range p.columns.labels {
			if dst[i], err = p.enc.label(i, p.value(at)); err != nil {
				break
			}
		}
		first = p.value(p.columns.labels[0])
	}
	if err != nil {
		return nil, badLine{p.errorf("%v", err)}
	}
	return first, nil
}

// Text parses lines in the format of the schema, with the header if its files have one. most limits the examples.
//
// Errors: CodeInvalidArgument, naming example, line, column and value.
func (e *Encoder) Text(text []byte, most int) (*Batch, error) {
	l := &lines{path: "text", buf: text, ended: true}
	r := &textReader{lines: l, parser: lineParser{enc: e, path: l.path, line: &l.line}}
	first, err := l.next()
	if err == io.EOF {
		return nil, invalid("no examples: the text is empty")
	} else if err == nil {
		err = r.parser.begin(first)
	}
	if err != nil {
		return nil, err
	}
	if !r.parser.columns.header {
		r.first, r.firstOffset, r.firstLine = first, l.offset, l.line
	}
	parse := r.parser.delimited
	if e.schema.Indexed() {
		parse = r.parser.indexed
	}
	b := NewBatch(min(bytes.Count(text, []byte{'\n'})+1, most), e.shape)
	for {
		line, err := r.next()
		switch {
		case err == io.EOF && b.N == 0:
			return nil, invalid("no examples: the text has only a header")
		case err == io.EOF:
			return b, nil
		case err != nil:
			return nil, err
		case b.N == most:
			return nil, invalid("more than %d examples", most)
		}
		if err := parse(line, b); err != nil {
			return nil, invalid("example %d, line %d: %w", b.N, l.line, err)
		}
		b.N++
	}
}
