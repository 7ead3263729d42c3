package data

import (
	"bytes"
	"fmt"
	"math"

	"github.com/rowraft/rowraft/trainer/data/number"
)

// token is one index:value of a line of a libsvm or libfm file.
type token struct {
	index uint64
	value float32
}

// indexed appends the example of a line of a libsvm or libfm file to b: the label, then index:value pairs, separated by
// spaces. What follows a # is a comment; the group qid:NUMBER is ignored.
func (p *lineParser) indexed(line []byte, b *Batch) error {
	line, _ = cutByte(line, '#')
	text, rest := cutSpace(line)
	if p.enc.schema.Unlabelled && bytes.IndexByte(text, ':') >= 0 {
		rest = line // the line has no label
	}
	if len(p.enc.schema.Labels) > 0 {
		label, err := p.enc.label(0, text)
		if err != nil {
			return err
		}
		b.Labels[b.N] = label
	}
	p.tokens = p.tokens[:0]
	for len(rest) > 0 {
		if text, rest = cutSpace(rest); len(text) == 0 {
			break
		}
		if bytes.HasPrefix(text, []byte("qid:")) {
			continue
		}
		index, value := cutByte(text, ':')
		n, ok := number.ParseID(index)
		x, finite := number.Parse(value)
		if !ok || !finite || math.IsInf(float64(float32(x)), 0) {
			return fmt.Errorf("%q, expected index:value with a finite value", text)
		}
		p.tokens = append(p.tokens, token{n, float32(x)})
	}
	s, n := p.enc.schema, b.N
	for i := range s.Dense {
		d := &s.Dense[i]
		v := float32(d.Missing)
		for _, t := range p.tokens {
			if t.index == uint64(d.Position) {
				v = d.value(float64(t.value))
			}
		}
		if isInf(v) {
			return errNumber(d.Column, line)
		}
		b.Dense[n*len(s.Dense)+i] = v
	}
	for i := range s.Categorical {
		c := &s.Categorical[i]
		first := len(b.Keys)
		for _, t := range p.tokens {
			if t.index < c.Indices[0] || t.index > c.Indices[1] {
				continue
			}
			p.enc.Index(i, t.index, t.value, b)
		}
		p.enc.Cut(i, first, b)
		b.Offsets[n*len(s.Categorical)+i+1] = int32(len(b.Keys))
	}
	return nil
}

// cutSpace returns the first word of b and what follows it.
func cutSpace(b []byte) (word, rest []byte) {
	b = bytes.TrimLeft(b, " \t")
	if i := bytes.IndexAny(b, " \t"); i >= 0 {
		return b[:i], b[i+1:]
	}
	return b, nil
}
