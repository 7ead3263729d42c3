package data

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data/number"
)

// Encoder writes the values of examples into batches, as a schema describes them. Not safe for concurrent use.
type Encoder struct {
	schema  *Schema
	shape   Shape
	hashers []*Hasher
	plain   []bool // features of one value, of which each is hashed as it is
	bucket  []byte // scratch
}

// NewEncoder returns an encoder for a complete schema.
func NewEncoder(s *Schema) *Encoder {
	e := &Encoder{schema: s, shape: s.Shape()}
	for i := range s.Categorical {
		c := &s.Categorical[i]
		e.hashers = append(e.hashers, NewHasher(c.hashName()))
		e.plain = append(e.plain, !c.exact() && len(c.Buckets) == 0 && c.Separator == "" && c.Weights == nil &&
			len(s.Missing) == 0)
	}
	return e
}

// Missing reports whether a value means that there is none.
func (e *Encoder) Missing(value []byte) bool {
	if len(value) == 0 {
		return true
	}
	for _, m := range e.schema.Missing {
		if string(value) == m {
			return true
		}
	}
	return false
}

// label returns label i.
func (e *Encoder) label(i int, value []byte) (float32, error) {
	if e.schema.Unlabelled {
		return 0, nil
	}
	l := &e.schema.Labels[i]
	for _, p := range l.Positive {
		if string(value) == p {
			return 1, nil
		}
	}
	switch {
	case e.Missing(value):
		return 0, fmt.Errorf("%s: the label is missing", l.Column)
	case l.Kind == KindNumber:
		x, ok := number.Parse(value)
		if !ok || math.IsInf(float64(float32(x)), 0) {
			return 0, fmt.Errorf("%s: label %q, expected a finite number", l.Column, value)
		}
		return float32(x), nil
	case len(l.Negative) == 0:
		return 0, nil
	}
	for _, n := range l.Negative {
		if string(value) == n {
			return 0, nil
		}
	}
	return 0, fmt.Errorf("%s: label %q, expected one of %q or %q", l.Column, value, l.Positive, l.Negative)
}

// Dense returns numeric feature i.
func (e *Encoder) Dense(i int, value []byte) (float32, error) {
	d := &e.schema.Dense[i]
	if e.Missing(value) {
		return float32(d.Missing), nil
	}
	x, ok := number.Parse(value)
	v := d.value(x)
	if !ok || isInf(v) {
		return 0, errNumber(d.Column, value)
	}
	return v, nil
}

func isInf(v float32) bool { return math.IsInf(float64(v), 0) }

func errNumber(c Column, value []byte) error {
	return fmt.Errorf("%s: %q, expected a finite number", c, value)
}

// Categorical appends the keys of feature i to b, and the weights if the feature has some.
func (e *Encoder) Categorical(i int, value, weights []byte, b *Batch) error {
	if e.plain[i] {
		e.add(e.hashers[i].Key(value), 1, b)
		return nil
	}
	c := &e.schema.Categorical[i]
	if c.Separator == "" {
		w, err := e.Weight(i, weights)
		if err != nil {
			return err
		}
		return e.One(i, value, w, b)
	}
	first := len(b.Keys)
	for left, n := value, 0; len(left) > 0; n++ {
		one, rest := cutByte(left, c.Separator[0])
		left = rest
		var weight []byte
		if c.Weights != nil {
			if len(weights) == 0 {
				return fmt.Errorf("%s: fewer numbers than %s has values", *c.Weights, c.Column)
			}
			weight, weights = cutByte(weights, c.Separator[0])
		}
		if e.Missing(one) {
			continue
		}
		w, err := e.Weight(i, weight)
		if err != nil {
			return err
		}
		if err := e.One(i, one, w, b); err != nil {
			return err
		}
	}
	if len(weights) > 0 && c.Weights != nil {
		return fmt.Errorf("%s: more numbers than %s has values", *c.Weights, c.Column)
	}
	e.Cut(i, first, b)
	return nil
}

// Cut keeps the last values of feature i in b, whose first one is b.Keys[first].
func (e *Encoder) Cut(i, first int, b *Batch) {
	most := e.schema.Categorical[i].MaxLength
	n := len(b.Keys) - first
	if most == 0 || n <= most {
		return
	}
	b.Keys = append(b.Keys[:first], b.Keys[first+n-most:]...)
	if b.Weights != nil {
		b.Weights = append(b.Weights[:first], b.Weights[first+n-most:]...)
	}
}

// cutByte returns the value before the first separator and what follows it.
func cutByte(b []byte, separator byte) (value, rest []byte) {
	for i, c := range b {
		if c == separator {
			return b[:i], b[i+1:]
		}
	}
	return b, nil
}

// Weight returns the weight of a value of feature i; 1 if the feature has no weights.
func (e *Encoder) Weight(i int, text []byte) (float32, error) {
	c := e.schema.Categorical[i].Weights
	if c == nil {
		return 1, nil
	}
	x, ok := number.Parse(text)
	if w := float32(x); ok && !math.IsInf(float64(w), 0) {
		return w, nil
	}
	return 0, errNumber(*c, text)
}

// One appends the key of one value of feature i.
func (e *Encoder) One(i int, value []byte, weight float32, b *Batch) error {
	c := &e.schema.Categorical[i]
	missing := e.Missing(value)
	var key rowraft.Key
	switch {
	case c.exact() && missing:
		return nil
	case c.exact():
		id, ok := number.ParseID(value)
		if !ok {
			return fmt.Errorf("%s: %q, expected an id from 0 to 2^64−1", c.Column, value)
		}
		key = rowraft.Key(id)
	case missing:
		key = e.hashers[i].Key(nil)
	case len(c.Buckets) > 0:
		x, ok := number.Parse(value)
		if !ok {
			return errNumber(c.Column, value)
		}
		n := 0
		for n < len(c.Buckets) && c.Buckets[n] <= x {
			n++
		}
		e.bucket = strconv.AppendInt(append(e.bucket[:0], 'b'), int64(n), 10)
		key = e.hashers[i].Key(e.bucket)
	default:
		key = e.hashers[i].Key(value)
	}
	e.add(key, weight, b)
	return nil
}

// Index appends the key of an index of feature i of a libsvm or libfm file.
func (e *Encoder) Index(i int, index uint64, weight float32, b *Batch) {
	key := rowraft.Key(index)
	if !e.schema.Categorical[i].exact() {
		e.bucket = strconv.AppendUint(e.bucket[:0], index, 10)
		key = e.hashers[i].Key(e.bucket)
	}
	e.add(key, weight, b)
}

func (e *Encoder) add(key rowraft.Key, weight float32, b *Batch) {
	b.Keys = append(b.Keys, key)
	if b.Weights != nil {
		b.Weights = append(b.Weights, weight)
	}
}

// undo removes the keys of an example that was not complete; keys of them were there before it.
func (b *Batch) undo(keys int) {
	b.Keys = b.Keys[:keys]
	if b.Weights != nil {
		b.Weights = b.Weights[:keys]
	}
}

// badLine is an error in one line, which may be skipped.
type badLine struct{ error }

func (b badLine) Unwrap() error { return b.error }

func isBadLine(err error) bool {
	var b badLine
	return errors.As(err, &b)
}
