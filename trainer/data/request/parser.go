package request

import (
	"bytes"
	"fmt"
	"math"
	"strconv"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/data/number"
)

// Parser makes batches from examples that a caller sends, with the features that files of the same values have, bit for
// bit. Labels may be there and are ignored. Not safe for concurrent use.
type Parser struct {
	schema *data.Schema // without labels
	shape  data.Shape
	enc    *data.Encoder
	names  map[string][]int // feature or column: the cells that it fills; none: it is ignored

	cells []cell // dense features, then categorical ones, then the weights of the categorical ones
	items []item // all lists of cells, one after the other
}

// cell is the value of one feature in an example. The zero cell is missing.
type cell struct {
	text     []byte
	list     bool // from:to of Parser.items are the values
	from, to int
	given    bool
}

// item is a value in a list.
type item struct{ text, weight []byte } // a nil text is missing, a nil weight not given

// NewParser returns a parser for a schema that is [data.Schema.Complete].
//
// Errors: CodeInvalidArgument for another one.
func NewParser(s *data.Schema) (*Parser, error) {
	if !s.Complete() {
		return nil, invalid("the schema depends on the training examples: want that of a model file (train --save-model)")
	}
	unlabelled := *s
	unlabelled.Unlabelled = true
	p := &Parser{schema: &unlabelled, shape: s.Shape(), enc: data.NewEncoder(&unlabelled), names: make(map[string][]int)}
	add := func(name string, at int) {
		if name != "" {
			p.names[name] = append(p.names[name], at)
		}
	}
	for i := range s.Dense {
		add(s.Dense[i].Column.String(), i)
	}
	for i := range s.Categorical {
		c, at := &s.Categorical[i], len(s.Dense)+i
		add(c.Column.Column, at)
		if c.Weights != nil {
			add(c.Weights.String(), at+len(s.Categorical))
		}
	}
	for i := range s.Categorical { // its own name is the feature's, also where it is the column of another
		if c := &s.Categorical[i]; c.Name != "" && c.Name != c.Column.Column {
			p.names[c.Name] = []int{len(s.Dense) + i}
		}
	}
	for i := range s.Labels {
		for _, name := range []string{s.Labels[i].Name, s.Labels[i].Column.String()} {
			if _, is := p.names[name]; !is {
				p.names[name] = nil
			}
		}
	}
	p.cells = make([]cell, len(s.Dense)+2*len(s.Categorical))
	return p, nil
}

// Shape returns the shape of the parser's batches.
func (p *Parser) Shape() data.Shape { return p.shape }

// Text parses lines in the format of the schema, with the header if its files have one. most limits the examples.
//
// Errors: CodeInvalidArgument, naming example, line, column and value.
func (p *Parser) Text(text []byte, most int) (*data.Batch, error) {
	if p.schema.Format == data.FormatParquet {
		return nil, invalid("the schema is of Parquet files, which have no lines: send the examples as JSON")
	}
	return p.enc.Text(text, most)
}

func tooMany(most int) error { return fmt.Errorf("more than %d examples", most) }

// Value is the value of a feature in an example: one text, or a list of them with or without weights.
type Value struct {
	Text    string // "": missing
	List    []string
	Weights []float64 // of List; nil: none
}

// Example has the values of an example, by the name of the feature or its column. A feature that it lacks is missing.
type Example map[string]Value

// Values parses examples.
//
// Errors: CodeInvalidArgument, naming example, feature and value.
func (p *Parser) Values(examples []Example) (*data.Batch, error) {
	b := data.NewBatch(len(examples), p.shape)
	for i, e := range examples {
		p.begin()
		for name, v := range e {
			c := cell{text: []byte(v.Text)}
			if v.List != nil {
				c.list, c.from = true, len(p.items)
				if v.Weights != nil && len(v.Weights) != len(v.List) {
					return nil, invalid("example %d: %s: %d values and %d weights", i, name, len(v.List), len(v.Weights))
				}
				for k, text := range v.List {
					it := item{text: []byte(text)}
					if v.Weights != nil {
						it.weight = strconv.AppendFloat(nil, v.Weights[k], 'g', -1, 64)
					}
					p.items = append(p.items, it)
				}
				c.to = len(p.items)
			}
			if err := p.set([]byte(name), c); err != nil {
				return nil, invalid("example %d: %w", i, err)
			}
		}
		if err := p.end(b); err != nil {
			return nil, invalid("example %d: %w", i, err)
		}
	}
	return b, nil
}

// maxItems bounds the values in the lists of one example: each takes many times the bytes of a short value.
const maxItems = 64 << 10

// begin begins an example.
func (p *Parser) begin() {
	clear(p.cells)
	clear(p.items) // they keep the text of the request
	p.items = p.items[:0]
}

// set sets a value of the example.
func (p *Parser) set(name []byte, c cell) error {
	at, known := p.names[string(name)]
	if !known {
		return fmt.Errorf("%s: the model has no such feature; it has %s", name, p.features())
	}
	c.given = true
	for _, i := range at {
		if p.cells[i].given {
			return fmt.Errorf("%s: the feature is given twice", name)
		}
		if p.schema.Trim {
			c.text = bytes.Trim(c.text, " ")
		}
		p.cells[i] = c
	}
	return nil
}

// features lists the names of the features for a message.
func (p *Parser) features() string {
	out := ""
	for i := range p.schema.Dense {
		out += ", " + p.schema.Dense[i].Column.String()
	}
	for i := range p.schema.Categorical {
		out += ", " + p.schema.Categorical[i].Name
	}
	const most = 1000
	if len(out) > most {
		out = out[:most] + " …"
	}
	return out[2:]
}

// end appends the example to b.
func (p *Parser) end(b *data.Batch) error {
	s, n := p.schema, b.N
	for i := range s.Dense {
		c := &p.cells[i]
		if c.list {
			return fmt.Errorf("%s: a list, expected one number", s.Dense[i].Column)
		}
		var err error
		if b.Dense[n*len(s.Dense)+i], err = p.dense(i, c.text); err != nil {
			return err
		}
	}
	for i := range s.Categorical {
		c, weights := &p.cells[len(s.Dense)+i], &p.cells[len(s.Dense)+len(s.Categorical)+i]
		var err error
		switch {
		case c.list || s.Indexed():
			err = p.listed(i, c, weights, b)
		case weights.list:
			err = fmt.Errorf("%s: a list of weights for one value", *s.Categorical[i].Weights)
		default:
			err = p.enc.Categorical(i, c.text, weights.text, b)
		}
		if err != nil {
			return err
		}
		b.Offsets[n*len(s.Categorical)+i+1] = int32(len(b.Keys))
	}
	b.N++
	return nil
}

// dense returns numeric feature i. Numbers of a libsvm file are float32 before the transform.
func (p *Parser) dense(i int, text []byte) (float32, error) {
	if x, ok := number.Parse(text); p.schema.Indexed() && ok {
		text = strconv.AppendFloat(nil, float64(float32(x)), 'g', -1, 64)
	}
	return p.enc.Dense(i, text)
}

// listed appends the values of a list, as a file has them with separators.
func (p *Parser) listed(i int, c, weights *cell, b *data.Batch) error {
	f := &p.schema.Categorical[i]
	name := f.Name
	list := p.items[c.from:c.to]
	if !c.list && len(c.text) > 0 {
		list = []item{{text: c.text}}
	}
	several := f.Separator != "" || p.schema.Indexed() || p.schema.Format == data.FormatParquet
	given := p.items[weights.from:weights.to]
	switch {
	case !several:
		return fmt.Errorf("%s: a list, expected one value: the schema has no separator for this feature", name)
	case len(weights.text) > 0:
		return fmt.Errorf("%s: one text, expected a list of weights: %s is a list", *f.Weights, name)
	case weights.list && len(given) != len(list):
		return fmt.Errorf("%s: %d weights, %s has %d values", *f.Weights, len(given), name, len(list))
	}
	first := len(b.Keys)
	for k, it := range list {
		if weights.list {
			it.weight = given[k].text
		}
		if it.text == nil || f.Separator != "" && p.schema.Format != data.FormatParquet && p.enc.Missing(it.text) {
			continue
		}
		var err error
		if p.schema.Indexed() {
			err = p.index(i, &it, b)
		} else {
			err = p.value(i, &it, b)
		}
		if err != nil {
			return err
		}
	}
	p.enc.Cut(i, first, b)
	return nil
}

// value appends a value of feature i.
func (p *Parser) value(i int, it *item, b *data.Batch) error {
	f := &p.schema.Categorical[i]
	switch {
	case it.weight != nil && f.Weights == nil:
		return fmt.Errorf("%s: a weight of %s, and the schema has no weights for this feature", f.Name, it.weight)
	case it.weight == nil && f.Weights != nil:
		return fmt.Errorf("%s: %q has no weight, expected [value, weight] pairs", f.Name, it.text)
	}
	w, err := p.enc.Weight(i, it.weight)
	if err != nil {
		return err
	}
	return p.enc.One(i, it.text, w, b)
}

// index appends an index of feature i of a libsvm file.
func (p *Parser) index(i int, it *item, b *data.Batch) error {
	f := &p.schema.Categorical[i]
	n, ok := number.ParseID(it.text)
	if !ok || n < f.Indices[0] || n > f.Indices[1] {
		return fmt.Errorf("%s: %q, expected an index from %d to %d", f.Name, it.text, f.Indices[0], f.Indices[1])
	}
	x := 1.0
	if it.weight != nil {
		if x, ok = number.Parse(it.weight); !ok || math.IsInf(float64(float32(x)), 0) {
			return fmt.Errorf("%s: weight %q of index %d, expected a finite number", f.Name, it.weight, n)
		}
	}
	p.enc.Index(i, n, float32(x), b)
	return nil
}

func invalid(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodeInvalidArgument, format, args...)
}
