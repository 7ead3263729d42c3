package data

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"unsafe"

	"github.com/rowraft/rowraft"
)

// File is a data set in one delimited text file. The examples at its end are held out.
type File struct {
	path   string
	schema *Schema
	size   int64 // examples
	held   int64 // held-out examples among them
	labels labelCount

	validation *File // has the held-out examples, instead of the end of this file; nil: none
}

// OpenFile counts the examples of a file and checks its header, its first line and the labels of all lines against the
// schema. The share held, [0, 1), at the end is held out.
//
// Errors: CodeInvalidArgument, naming file, line and value.
func OpenFile(path string, schema *Schema, held float64) (*File, error) {
	if !(held >= 0 && held < 1) {
		return nil, invalid("held-out share %v: want from 0 to below 1", held)
	}
	f := &File{path: path, schema: schema}
	r, err := f.open(Share{To: -1, Trainers: 1})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	first := NewBatch(1, schema.Shape())
	if err := r.Next(first); err == io.EOF {
		return nil, invalid("%s: no examples", path)
	} else if err != nil {
		return nil, err
	}
	if err := f.count(); err != nil {
		return nil, err
	}
	f.held = int64(math.Round(float64(f.size) * held))
	return f, nil
}

// count counts the examples, and reads the label of each if there are labels. It parses the other columns of no line.
func (f *File) count() error {
	r, err := f.open(Share{To: -1, Trainers: 1})
	if err != nil {
		return err
	}
	defer r.Close()
	r.split.most = r.label + 1
	for ; ; f.size++ {
		line, err := r.line()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if r.label < 0 {
			continue
		}
		values, err := r.split.split(line)
		if err != nil {
			return r.lines.errorf("%v", err)
		}
		if len(values) <= r.label {
			return r.lines.errorf("%d columns, expected %d", len(values), r.columns)
		}
		value := values[r.label]
		label, err := r.labelOf(value)
		if err != nil {
			return err
		}
		f.labels.add(value, label > 0)
	}
}

// labelCount counts the labels of a file.
type labelCount struct {
	positives int64
	others    []string // the first different values that are not positive, at most maxOthers
}

const maxOthers = 8

func (c *labelCount) add(value []byte, positive bool) {
	if positive {
		c.positives++
		return
	}
	if c.positives > 0 || len(c.others) == maxOthers ||
		slices.ContainsFunc(c.others, func(o string) bool { return o == string(value) }) {
		return
	}
	c.others = append(c.others, string(value))
}

// CheckLabels returns an error if no example of the file has a positive label: a model learns nothing from it.
//
// Errors: CodeInvalidArgument, naming the values that were seen.
func (f *File) CheckLabels() error {
	if f.labels.positives > 0 {
		return nil
	}
	seen := fmt.Sprintf("%q", f.labels.others)
	if len(f.labels.others) == maxOthers {
		seen += " and maybe others"
	}
	return invalid("%s: none of its %d examples has a positive label: positive is %q in the schema, and %s has the "+
		"values %s: set positive in label to those that mean 1", f.path, f.size, f.schema.Label.Positive,
		f.schema.Label.Column, seen)
}

// Shape implements [Set].
func (f *File) Shape() Shape { return f.schema.Shape() }

// TrainSize implements [Set].
func (f *File) TrainSize() int64 { return f.size - f.held }

// Name implements [Set].
func (f *File) Name() string { return f.path }

// Train implements [Set].
func (f *File) Train(rank, trainers int) (Source, error) {
	return f.open(Share{To: f.size - f.held, Rank: rank, Trainers: trainers})
}

// Range implements [Ranger]. It reads the lines before from without parsing them.
func (f *File) Range(from, to int64) (Source, error) {
	return f.open(Share{From: from, To: min(to, f.size-f.held), Trainers: 1})
}

// SetValidation makes all examples of v the held-out ones. All examples of f are then training examples.
func (f *File) SetValidation(v *File) { f.validation, f.held = v, 0 }

// HeldSize is the number of held-out examples.
func (f *File) HeldSize() int64 {
	if f.validation != nil {
		return f.validation.size
	}
	return f.held
}

// Held implements [Set].
func (f *File) Held() (Source, error) {
	if v := f.validation; v != nil {
		return v.open(Share{To: v.size, Trainers: 1})
	}
	return f.open(Share{From: f.size - f.held, To: f.size, Trainers: 1})
}

func (f *File) open(p Share) (*fileSource, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	l, err := openLines(f.path)
	if err != nil {
		return nil, err
	}
	s := &fileSource{schema: f.schema, lines: l, share: p}
	if err := s.start(); err != nil {
		l.close()
		return nil, err
	}
	return s, nil
}

// fileSource reads the examples of one Share.
type fileSource struct {
	schema   *Schema
	lines    *lines
	split    splitter
	share    Share
	number   int64  // of the next example in the file
	held     []byte // first line, if it is data
	columns  int    // number of columns of each line
	label    int    // positions, from 0; -1: without labels
	dense    []int
	category []int
	hashers  []*Hasher
	bucket   []byte // scratch
}

// start reads the first line.
func (s *fileSource) start() error {
	first, err := s.lines.next()
	if err == io.EOF {
		return invalid("%s: the file is empty", s.lines.path)
	} else if err != nil {
		return err
	}
	return s.begin(first)
}

// begin resolves columns to positions by the first line of a file.
func (s *fileSource) begin(first []byte) error {
	separator, header := byte(','), false
	if s.schema.Separator != "" {
		separator = s.schema.Separator[0]
	} else if bytes.IndexByte(first, '\t') >= 0 {
		separator = '\t'
	}
	if s.schema.Header != nil {
		header = *s.schema.Header
	} else { // criteo: a line of data starts with the label, which may be missing
		label, _, _ := bytes.Cut(first, []byte{separator})
		header = len(label) > 0 && string(label) != "0" && string(label) != "1"
	}
	s.split = splitter{separator: separator, quotes: *s.schema.Quotes, trim: s.schema.Trim}
	values, err := s.split.split(first)
	if err != nil {
		return s.lines.errorf("%v", err)
	}
	s.columns = len(values)
	var names []string
	if header {
		for _, v := range values {
			names = append(names, string(v))
		}
	} else {
		s.held = bytes.Clone(first)
	}
	if s.label = -1; !s.schema.Unlabelled {
		if s.label, err = s.position(s.schema.Label.Column, names); err != nil {
			return err
		}
	}
	for _, d := range s.schema.Dense {
		at, err := s.position(d.Column, names)
		if err != nil {
			return err
		}
		s.dense = append(s.dense, at)
	}
	for _, c := range s.schema.Categorical {
		at, err := s.position(c.Column, names)
		if err != nil {
			return err
		}
		s.category = append(s.category, at)
		s.hashers = append(s.hashers, NewHasher(c.Name))
	}
	return nil
}

func (s *fileSource) position(c Column, names []string) (int, error) {
	if c.Column == "" {
		if c.Position > s.columns {
			return 0, s.lines.errorf("%d columns, the schema wants column %d", s.columns, c.Position)
		}
		return c.Position - 1, nil
	}
	if names == nil {
		return 0, invalid("%s: the schema names column %q in a file without a header: use position", s.lines.path,
			c.Column)
	}
	at := slices.Index(names, c.Column)
	if at < 0 {
		return 0, s.lines.errorf("the header has no column %q; it has %q", c.Column, names)
	}
	return at, nil
}

// Next implements [Source].
func (s *fileSource) Next(b *Batch) error {
	b.N = 0
	for b.N < len(b.Labels) {
		line, number, err := s.nextOwn()
		if err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		if b.N == 0 {
			b.First = number
		}
		if err := s.example(line, b); err != nil {
			return err
		}
		b.N++
	}
	if b.N == 0 {
		return io.EOF
	}
	return nil
}

// nextOwn returns the next line of the Share, and the number of its example.
func (s *fileSource) nextOwn() (line []byte, number int64, err error) {
	for {
		if s.share.To >= 0 && s.number >= s.share.To {
			return nil, 0, io.EOF
		}
		line, err := s.line()
		if err != nil {
			return nil, 0, err
		}
		number := s.number
		s.number++
		if number >= s.share.From && (number-s.share.From)%int64(s.share.Trainers) == int64(s.share.Rank) {
			return line, number, nil
		}
	}
}

// Continue implements [Continuer]. It reads the lines before from without parsing them.
func (s *fileSource) Continue(from, to int64) bool {
	if from < s.number {
		return false
	}
	s.share = Share{From: from, To: to, Trainers: 1}
	return true
}

// Skip implements [Source]. It reads the lines without parsing them.
func (s *fileSource) Skip(n int64) error {
	for ; n > 0; n-- {
		if _, _, err := s.nextOwn(); err != nil {
			return err
		}
	}
	return nil
}

func (s *fileSource) line() ([]byte, error) {
	if s.held != nil {
		line := s.held
		s.held = nil
		return line, nil
	}
	return s.lines.next()
}

// example writes the values of line into example b.N of b.
func (s *fileSource) example(line []byte, b *Batch) error {
	values, err := s.split.split(line)
	if err != nil {
		return s.lines.errorf("%v", err)
	}
	if len(values) != s.columns {
		return s.lines.errorf("%d columns, expected %d", len(values), s.columns)
	}
	if s.label < 0 {
		b.Labels[b.N] = 0
	} else if b.Labels[b.N], err = s.labelOf(values[s.label]); err != nil {
		return err
	}
	for i, at := range s.dense {
		d := &s.schema.Dense[i]
		v := float32(d.Missing)
		if !s.missing(values[at]) {
			x, err := s.number64(values[at], d.Column)
			if err != nil {
				return err
			}
			v = d.value(x)
		}
		b.Dense[b.N*len(s.dense)+i] = v
	}
	for i, at := range s.category {
		key, err := s.key(i, values[at])
		if err != nil {
			return err
		}
		b.Keys[b.N*len(s.category)+i] = key
	}
	return nil
}

func (s *fileSource) key(i int, value []byte) (rowraft.Key, error) {
	c := &s.schema.Categorical[i]
	if s.missing(value) {
		return s.hashers[i].Key(nil), nil
	}
	if len(c.Buckets) > 0 {
		x, err := s.number64(value, c.Column)
		if err != nil {
			return 0, err
		}
		n := 0
		for n < len(c.Buckets) && c.Buckets[n] <= x {
			n++
		}
		s.bucket = strconv.AppendInt(append(s.bucket[:0], 'b'), int64(n), 10)
		value = s.bucket
	}
	return s.hashers[i].Key(value), nil
}

func (s *fileSource) labelOf(value []byte) (float32, error) {
	l := &s.schema.Label
	for _, p := range l.Positive {
		if string(value) == p {
			return 1, nil
		}
	}
	if s.missing(value) {
		return 0, s.lines.errorf("%s: the label is missing", l.Column)
	}
	if len(l.Negative) == 0 {
		return 0, nil
	}
	for _, n := range l.Negative {
		if string(value) == n {
			return 0, nil
		}
	}
	return 0, s.lines.errorf("%s: label %q, expected one of %q or %q", l.Column, value, l.Positive, l.Negative)
}

func (s *fileSource) missing(value []byte) bool {
	if len(value) == 0 {
		return true
	}
	for _, m := range s.schema.Missing {
		if string(value) == m {
			return true
		}
	}
	return false
}

func (s *fileSource) number64(value []byte, c Column) (float64, error) {
	// ParseFloat keeps nothing of its argument unless it fails.
	x, err := strconv.ParseFloat(unsafe.String(unsafe.SliceData(value), len(value)), 64)
	if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
		return 0, s.lines.errorf("%s: %q, expected a finite number", c, value)
	}
	return x, nil
}

// Close implements [Source].
func (s *fileSource) Close() error { return s.lines.close() }
