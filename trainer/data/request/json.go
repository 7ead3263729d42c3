package request

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rowraft/rowraft/trainer/data"
)

// JSON parses the examples of a JSON text {"examples": [{NAME: VALUE, …}, …]}. most limits their number.
//
// A value is a text, a number, true (1), false (0) or null (missing), or a list: of values, of pairs [value, weight],
// or an object {value: weight, …}. Numbers count as they are written.
//
// Errors: CodeInvalidArgument, naming example, feature and value.
func (p *Parser) JSON(text []byte, most int) (*data.Batch, error) {
	if !json.Valid(text) {
		var v json.RawMessage
		err := json.Unmarshal(text, &v)
		if e, ok := errors.AsType[*json.SyntaxError](err); ok {
			return nil, invalid("JSON: %w, at byte %d", err, e.Offset)
		}
		return nil, invalid("JSON: %w", err)
	}
	t := &tokens{text: text}
	var b *data.Batch
	if t.peek() != '{' {
		return nil, errNoExamples
	}
	err := t.object(func(key []byte) error {
		if string(key) != "examples" || t.peek() != '[' || b != nil {
			return fmt.Errorf("%q: %w", key, errNoExamples)
		}
		// An example has two bytes or more. The batch grows by doubling.
		b = data.NewBatch(min(most, 16), p.shape)
		return t.array(func() error { return p.object(t, &b, most) })
	})
	switch {
	case err != nil:
		return nil, invalid("%w", err)
	case b == nil || b.N == 0:
		return nil, errNoExamples
	}
	return b, nil
}

var errNoExamples = invalid(`JSON: want {"examples": [{"feature": value, …}, …]} with one example or more`)

// object parses an example and appends it to b.
func (p *Parser) object(t *tokens, b **data.Batch, most int) error {
	n := (*b).N
	if n == most {
		return tooMany(most)
	}
	if n == len((*b).Labels)/max(p.shape.Labels, 1) {
		larger := data.NewBatch(min(most, 4*n), p.shape)
		for i := range n {
			larger.CopyFrom(*b, i, p.shape)
		}
		*b = larger
	}
	if t.peek() != '{' {
		return fmt.Errorf("example %d: want an object of features", n)
	}
	p.begin()
	err := t.object(func(key []byte) error {
		c, err := p.cell(t)
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return p.set(key, c)
	})
	if err == nil {
		err = p.end(*b)
	}
	if err != nil {
		return fmt.Errorf("example %d: %w", n, err)
	}
	return nil
}

// cell parses the value of a feature.
func (p *Parser) cell(t *tokens) (c cell, err error) {
	room := func() error {
		if len(p.items) >= maxItems {
			return fmt.Errorf("more than %d values in the lists of an example", maxItems)
		}
		return nil
	}
	switch t.peek() {
	case '[':
		c.list, c.from = true, len(p.items)
		err = t.array(func() error {
			if err := room(); err != nil {
				return err
			}
			if t.peek() != '[' {
				text, err := t.value()
				p.items = append(p.items, item{text: text})
				return err
			}
			it, n := item{}, 0
			err := t.array(func() (err error) {
				if n++; n == 1 {
					it.text, err = t.value()
				} else {
					it.weight, err = t.value()
				}
				return err
			})
			if err == nil && (n != 2 || it.weight == nil) {
				err = errors.New("a list in a list, expected pairs [value, weight]")
			}
			p.items = append(p.items, it)
			return err
		})
		c.to = len(p.items)
	case '{':
		c.list, c.from = true, len(p.items)
		err = t.object(func(key []byte) error {
			if err := room(); err != nil {
				return err
			}
			weight, err := t.value()
			if err == nil && weight == nil {
				err = fmt.Errorf("the weight of %q is null", key)
			}
			p.items = append(p.items, item{text: key, weight: weight})
			return err
		})
		c.to = len(p.items)
	default:
		c.text, err = t.value()
	}
	return c, err
}

// tokens reads a valid JSON text.
type tokens struct {
	text []byte
	at   int
}

// peek returns the first byte of the next token.
func (t *tokens) peek() byte {
	for {
		switch c := t.text[t.at]; c {
		case ' ', '\t', '\n', '\r':
			t.at++
		default:
			return c
		}
	}
}

// object calls f for each member of an object, behind its key. f reads the value.
func (t *tokens) object(f func(key []byte) error) error {
	return t.members('}', func() error {
		key := t.string()
		t.peek()
		t.at++ // the colon
		return f(key)
	})
}

// array calls f for each value of an array. f reads it.
func (t *tokens) array(f func() error) error { return t.members(']', f) }

func (t *tokens) members(end byte, f func() error) error {
	t.at++ // the bracket
	for {
		switch t.peek() {
		case end:
			t.at++
			return nil
		case ',':
			t.at++
			t.peek()
		}
		if err := f(); err != nil {
			return err
		}
	}
}

// string returns the string at peek.
func (t *tokens) string() []byte {
	t.peek()
	start := t.at + 1
	end := start + bytes.IndexByte(t.text[start:], '"')
	if bytes.IndexByte(t.text[start:end], '\\') < 0 {
		t.at = end + 1
		return t.text[start:end:end]
	}
	for end = start; t.text[end] != '"'; end++ {
		if t.text[end] == '\\' {
			end++
		}
	}
	t.at = end + 1
	var s string
	_ = json.Unmarshal(t.text[start-1:end+1], &s) // it is valid
	return []byte(s)
}

var one, zero = []byte("1"), []byte("0")

// value returns the text of a single value, nil for null.
func (t *tokens) value() ([]byte, error) {
	switch t.peek() {
	case '"':
		return t.string(), nil
	case '[':
		return nil, errors.New("a list in a list, expected a single value")
	case '{':
		return nil, errors.New("an object in a list, expected a single value")
	}
	start := t.at
	for t.at < len(t.text) && bytes.IndexByte([]byte(",]} \t\r\n"), t.text[t.at]) < 0 {
		t.at++
	}
	switch text := t.text[start:t.at:t.at]; string(text) {
	case "null":
		return nil, nil
	case "true":
		return one, nil
	case "false":
		return zero, nil
	default:
		return text, nil
	}
}
