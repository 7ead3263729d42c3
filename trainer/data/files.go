package data

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// Options are how the examples of files are divided and ordered.
type Options struct {
	Held    float64 // share of the examples that is held out, [0, 1)
	HeldBy  string  // HeldLast ("") or HeldRandom
	Shuffle string  // ShuffleNone (""), ShuffleFiles or ShuffleExamples
	Buffer  int     // examples of ShuffleExamples in memory; 0: 65536
	Seed    uint64  // of HeldRandom and Shuffle
	MaxBad  float64 // share of bad lines that is skipped, [0, 1)
	NoFit   bool    // these are not the training examples: a schema that standardizes by them is refused
}

// Values of Options.
const (
	HeldLast   = "last"   // the last examples of the last files
	HeldRandom = "random" // each example by its number and the seed

	ShuffleNone     = "none"     // the files in their order
	ShuffleFiles    = "files"    // the files in an order of each epoch
	ShuffleExamples = "examples" // blocks of examples in an order of each epoch, and in a buffer single ones
)

const (
	defaultBuffer = 64 << 10
	maxBuffer     = 1 << 24
)

// Files is a data set in files of one format: delimited text, libsvm, or Parquet.
//
// Examples have numbers, from 0 through all files, an example for each line of data, good or bad. Positions count the
// training examples of an epoch in its order, a pure function of the options, the files and the epoch.
type Files struct {
	schema *Schema
	opt    Options
	inputs []*input
	base   []int64 // number of each input's first example, and the number of all
	train  int64   // training examples
	labels labelCount
	bad    atomic.Int64
	said   atomic.Int64 // bad lines that were noted

	validation *Files // has the held-out examples, instead of examples of these files; nil: none

	mu         sync.Mutex
	note       func(string)
	order      *order // of orderEpoch
	orderEpoch int64  // the last epoch that was opened
}

// input is one file. Immutable after OpenFiles.
type input struct {
	path    string
	size    int64    // examples
	columns *columns // of text
	marks   []mark   // of text that is not compressed: example markEvery·i
	rows    bool     // Parquet: a reader can find any row
}

// mark is where an example of a text file begins.
type mark struct{ offset, line int64 } // line: lines before it

// markEvery is the number of examples between two marks, and the number of a block of [ShuffleExamples].
const markEvery = 1024

// OpenFiles checks the headers, the first lines and the labels of all lines of the files against the schema. It reads
// all files once, and parses no other column than labels. A schema that standardizes by the training examples costs a
// second pass over these.
//
// Errors: CodeInvalidArgument, naming file, line, column and value.
func OpenFiles(paths Paths, schema *Schema, opt Options) (*Files, error) {
	if err := opt.complete(); err != nil {
		return nil, err
	}
	names, err := paths.expand()
	if err != nil {
		return nil, err
	}
	f := &Files{schema: schema, opt: opt, base: []int64{0}, note: func(string) {}}
	if f.schema, err = schema.forFile(names[0]); err != nil {
		return nil, err
	}
	f.labels.init(f.schema)
	for _, name := range names {
		in := &input{path: name}
		if err := f.index(in); err != nil {
			return nil, err
		}
		if first := f.inputs; schema.KeepLines && (in.rows || len(first) > 0 &&
			!bytes.Equal(first[0].columns.head, in.columns.head)) {
			return nil, invalid("%s: lines are kept of text files with one header: this one is Parquet, or has another header "+
				"than the first", in.path)
		}
		f.inputs = append(f.inputs, in)
		f.base = append(f.base, f.size()+in.size)
	}
	if f.size() == 0 {
		return nil, invalid("%s: no examples", f.Name())
	}
	if err := f.checkFirst(); err != nil {
		return nil, err
	}
	f.train = f.size() - int64(math.Round(float64(f.size())*opt.Held))
	if f.random() {
		f.train = f.naturalOrder(false).size()
	}
	return f, f.fit()
}

func (o *Options) complete() error {
	if o.Buffer == 0 {
		o.Buffer = defaultBuffer
	}
	switch {
	case !(o.Held >= 0 && o.Held < 1):
		return invalid("held-out share %v: want from 0 to below 1", o.Held)
	case !slices.Contains([]string{"", HeldLast, HeldRandom}, o.HeldBy):
		return invalid("held_by %q: want last or random", o.HeldBy)
	case !slices.Contains([]string{"", ShuffleNone, ShuffleFiles, ShuffleExamples}, o.Shuffle):
		return invalid("shuffle %q: want none, files or examples", o.Shuffle)
	case o.Buffer < 1 || o.Buffer > maxBuffer:
		return invalid("shuffle_buffer %d: want 1 to %d examples", o.Buffer, maxBuffer)
	case !(o.MaxBad >= 0 && o.MaxBad < 1):
		return invalid("max_bad %v: want a share from 0 to below 1", o.MaxBad)
	}
	return nil
}

// forFile returns the schema for files of which path is the first. It differs if the header names the features.
func (s *Schema) forFile(path string) (*Schema, error) {
	if !s.derived() {
		return s, nil
	}
	l, err := openLines(path)
	if err != nil {
		return nil, err
	}
	defer l.close()
	first, err := l.next()
	if err == io.EOF {
		return nil, invalid("%s: the file is empty", path)
	} else if err != nil {
		return nil, err
	}
	return s.fromHeader(path, first)
}

// index counts the examples of an input, checks their labels, and stores where they are.
func (f *Files) index(in *input) error {
	if f.schema.Format == FormatParquet {
		return f.indexParquet(in)
	}
	r, err := f.openText(in)
	if err != nil {
		return err
	}
	defer r.close()
	seekable := !compressed(in.path)
	labels := make([]float32, len(f.schema.Labels))
	bad := int64(0)
	for {
		at := mark{r.lines.offset, r.lines.line}
		line, err := r.next()
		if err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		if seekable && in.size%markEvery == 0 {
			in.marks = append(in.marks, at)
		}
		in.size++
		value, err := r.parser.labels(line, labels)
		if err != nil {
			if bad++; f.opt.MaxBad == 0 {
				return err
			} else if float64(bad) > f.opt.MaxBad*float64(max(in.size, badOf)) {
				return f.tooMany(err, bad, in.size)
			}
			continue
		}
		f.labels.add(value, labels)
	}
	return nil
}

// checkFirst parses the first example, so that a schema that does not fit is reported before training.
func (f *Files) checkFirst() error {
	s := newSource(f, f.naturalOrder(true), Share{To: 1, Trainers: 1})
	defer s.Close()
	if err := s.Next(NewBatch(1, f.Shape())); err != io.EOF {
		return err
	}
	return nil
}

// badOf is the least number of lines of which a share of bad ones is taken.
const badOf = 1000

// tooMany is the error of the line that exceeds the share of bad lines.
func (f *Files) tooMany(err error, bad, read int64) error {
	return fmt.Errorf("%w; %d of %d lines are bad: want at most the share max_bad %v", err, bad, read, f.opt.MaxBad)
}

func (f *Files) size() int64 { return f.base[len(f.base)-1] }

func (f *Files) random() bool {
	return f.opt.HeldBy == HeldRandom && f.opt.Held > 0 && f.validation == nil
}

// heldOut reports whether an example is held out.
func (f *Files) heldOut(number int64) bool {
	if f.random() {
		u := mix(mix(f.opt.Seed+0x68656c64) + uint64(number)*0x9e3779b97f4a7c15)
		return float64(u>>11)/(1<<53) < f.opt.Held
	}
	return number >= f.train
}

// Shape implements [Set].
func (f *Files) Shape() Shape { return f.schema.Shape() }

// Schema returns the complete schema: with the features that a header names, and with the means and standard deviations
// of the training examples.
func (f *Files) Schema() *Schema { return f.schema }

// TrainSize implements [Set].
func (f *Files) TrainSize() int64 { return f.train }

// Name implements [Set].
func (f *Files) Name() string {
	if n := len(f.inputs); n > 1 {
		return fmt.Sprintf("%s and %d more files", f.inputs[0].path, n-1)
	} else if n == 1 {
		return f.inputs[0].path
	}
	return "data"
}

// Bad returns how many bad lines its sources have skipped.
func (f *Files) Bad() int64 { return f.bad.Load() }

// OnNote sets the function that gets notes about bad lines. Call it before a source is read.
func (f *Files) OnNote(note func(string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note = note
}

// Describe returns how the examples are divided and ordered, and a warning about that or "".
func (f *Files) Describe() (text, warning string) {
	held := f.HeldSize()
	text = fmt.Sprintf("%s: %d examples to train", f.Name(), f.train)
	share := 100 * float64(held) / float64(f.size())
	switch {
	case f.validation != nil:
		text += fmt.Sprintf("; held out: the %d examples of %s", held, f.validation.Name())
	case held == 0:
		text += "; none held out"
	case f.random():
		text += fmt.Sprintf("; held out: %d random ones (%.1f %%)", held, share)
	default:
		text += fmt.Sprintf("; held out: the last %d (%.1f %%)", held, share)
	}
	switch f.opt.Shuffle {
	case ShuffleFiles:
		text += "; files shuffled"
	case ShuffleExamples:
		text += fmt.Sprintf("; shuffled with a buffer of %d examples", f.opt.Buffer)
	}
	if f.labels.sorted() && (f.opt.Shuffle != ShuffleExamples || held > 0 && !f.random() && f.validation == nil) {
		warning = fmt.Sprintf("WARNING: THE EXAMPLES ARE SORTED BY LABEL: %s changes %d times in %d examples: set "+
			"shuffle: examples, and held_by: random or a validation file", f.schema.Labels[0].Name, f.labels.changes,
			f.size())
	}
	return text, warning
}

// Train implements [Set].
func (f *Files) Train(epoch int64, rank, trainers int) (Source, error) {
	share := Share{To: f.train, Rank: rank, Trainers: trainers}
	if err := share.validate(); err != nil {
		return nil, err
	}
	s := newSource(f, f.orderOf(epoch), share)
	s.epoch = epoch
	return s, nil
}

// Range implements [Ranger].
func (f *Files) Range(epoch, from, to int64) (Source, error) {
	s := newSource(f, f.orderOf(epoch), Share{From: from, To: min(to, f.train), Trainers: 1})
	s.epoch = epoch
	return s, nil
}

// SetValidation makes all examples of v the held-out ones. All examples of f are then training examples.
func (f *Files) SetValidation(v *Files) {
	f.validation, f.train = v, f.size()
	f.order = nil
}

// HeldSize implements [Set].
func (f *Files) HeldSize() int64 {
	if f.validation != nil {
		return f.validation.size()
	}
	return f.size() - f.train
}

// Held implements [Set].
func (f *Files) Held() (Source, error) {
	if v := f.validation; v != nil {
		return newSource(v, v.naturalOrder(true), Share{To: v.size(), Trainers: 1}), nil
	}
	s := newSource(f, f.naturalOrder(false, true), Share{To: f.HeldSize(), Trainers: 1})
	return s, nil
}

// open opens a reader of an input.
func (f *Files) open(in *input) (reader, error) {
	if f.schema.Format == FormatParquet {
		return openParquet(in, f.schema)
	}
	r, err := f.openText(in)
	if err != nil { // not a reader that holds a nil
		return nil, err
	}
	return r, nil
}

// openText opens an input and reads its header.
func (f *Files) openText(in *input) (*textReader, error) {
	l, err := openLines(in.path)
	if err != nil {
		return nil, err
	}
	r := &textReader{in: in, lines: l, parser: lineParser{enc: NewEncoder(f.schema), path: in.path, line: &l.line,
		columns: in.columns}}
	start := mark{}
	first, err := l.next()
	switch {
	case err == io.EOF:
		err = invalid("%s: the file is empty", in.path)
	case err == nil && in.columns == nil:
		err = r.parser.begin(first)
		in.columns = r.parser.columns
	}
	if err != nil {
		l.close()
		return nil, err
	}
	if !in.columns.header {
		r.first = slices.Clone(first)
		r.firstOffset, r.firstLine = l.offset, l.line
		l.offset, l.line = start.offset, start.line
	}
	return r, nil
}

// textReader reads the examples of a text file. It implements reader.
type textReader struct {
	in     *input
	lines  *lines
	parser lineParser
	at     int64 // number of the next example in the file

	first                  []byte // the first line, if it is data and not yet read
	firstOffset, firstLine int64  // behind it
}

func (r *textReader) next() ([]byte, error) {
	if line := r.first; line != nil {
		r.first = nil
		r.lines.offset, r.lines.line = r.firstOffset, r.firstLine
		return line, nil
	}
	return r.lines.next()
}

func (r *textReader) number() int64 { return r.at }

// seek implements reader: it reads on in the file, or from a mark.
func (r *textReader) seek(number int64) error {
	if m := int(number / markEvery); m < len(r.in.marks) && (number < r.at || r.at < int64(m)*markEvery) {
		if err := r.lines.seek(r.in.marks[m]); err != nil {
			return err
		}
		r.at, r.first = int64(m)*markEvery, nil
	}
	for r.at < number {
		if err := r.skip(); err != nil {
			return err
		}
	}
	return nil
}

func (r *textReader) skip() error {
	_, err := r.next()
	r.at++
	return err
}

func (r *textReader) read(b *Batch) error {
	line, err := r.next()
	r.at++
	if err != nil {
		return err
	}
	return r.parser.example(line, b)
}

func (r *textReader) close() error { return r.lines.close() }

// labelCount counts the labels of files.
type labelCount struct {
	schema    *Schema
	positives []int64  // of each label
	others    []string // the first different values of the first label that are not positive, at most maxOthers

	last          float32 // first label of the example before
	count         int64
	changes       int64
	rises, higher int64 // changes to a higher label; examples with another label than 0
}

const maxOthers = 8

func (c *labelCount) init(s *Schema) { c.schema, c.positives = s, make([]int64, len(s.Labels)) }

// add counts the labels of the next example; value is the text of the first one.
func (c *labelCount) add(value []byte, labels []float32) {
	for i, l := range labels {
		if l > 0 {
			c.positives[i]++
		}
	}
	y := labels[0]
	if c.count > 0 && y != c.last {
		c.changes++
		if y > c.last {
			c.rises++
		}
	}
	c.last = y
	c.count++
	if y != 0 {
		c.higher++
		return
	}
	if c.positives[0] > 0 || len(c.others) == maxOthers ||
		slices.ContainsFunc(c.others, func(o string) bool { return o == string(value) }) {
		return
	}
	c.others = append(c.others, string(value))
}

// sorted reports whether equal labels stand together: a binary label has a tenth of the changes that a random order
// has, a number (almost) only rises or only falls.
func (c *labelCount) sorted() bool {
	if c.count < 100 || c.changes == 0 {
		return false
	}
	if c.schema.Labels[0].Kind == KindNumber {
		return min(c.rises, c.changes-c.rises)*100 < c.changes
	}
	p := float64(c.higher) / float64(c.count)
	return float64(c.changes) < 2*p*(1-p)*float64(c.count)/10
}

// CheckLabels returns an error if a binary label is positive in no example: a model learns nothing from it.
//
// Errors: CodeInvalidArgument, naming the values that were seen.
func (f *Files) CheckLabels() error {
	for i := range f.schema.Labels {
		l := &f.schema.Labels[i]
		if l.Kind == KindNumber || f.labels.positives[i] > 0 {
			continue
		}
		if i > 0 {
			return invalid("%s: none of its %d examples has a positive label %s: positive is %q", f.Name(), f.size(),
				l.Name, l.Positive)
		}
		seen := fmt.Sprintf("%q", f.labels.others)
		if len(f.labels.others) == maxOthers {
			seen += " and maybe others"
		}
		return invalid("%s: none of its %d examples has a positive label: positive is %q in the schema, and %s has the "+
			"values %s: set positive in label to those that mean 1", f.Name(), f.size(), l.Positive, l.Column, seen)
	}
	return nil
}
