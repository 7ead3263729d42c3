package data

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// ErrNoneYet is what Next of a [Stream] returns after it has waited a moment for new examples: call it again.
var ErrNoneYet = errors.New("no new examples yet")

// Stdin is the path of standard input.
const Stdin = "-"

// Place is a position in a stream, at the end of a line.
type Place struct {
	Name  string // of the file in its folder; Stdin; "": nothing was read
	Bytes int64  // bytes of the file that were read
	Lines int64  // lines of data in these bytes, of all trainers
	// CRC-32C of the file's first HeadBytes bytes, which tells it from another file of the same name.
	HeadBytes, HeadSum uint32
}

// Follow is a data set that grows: a file to which lines are appended, a folder of such files, or standard input.
// Only standard input has an end, and no examples are held out.
//
// The stream reads the files of a folder in the order of their names. A file is at its end when there is a later
// one and it has not grown for a second. Names that begin with a dot or end in .tmp are ignored: write a file under
// such a name and rename it, or append to it.
type Follow struct {
	path   string
	folder bool
	schema *Schema
	input  *os.File // standard input
	note   func(string)
	times  waits
}

// waits are the intervals of a stream's waiting.
type waits struct {
	poll   time.Duration // between two checks of a file that has not grown
	linger time.Duration // how long the first example of a batch waits for the others
	settle time.Duration // without growth, before a file with a successor is at its end
}

var usualPace = waits{poll: 50 * time.Millisecond, linger: time.Second / 2, settle: time.Second}

// OpenFollow checks the path. A file may appear later.
//
// Errors: CodeInvalidArgument.
func OpenFollow(path string, schema *Schema) (*Follow, error) {
	f := &Follow{path: path, schema: schema, note: func(string) {}, times: usualPace}
	switch {
	case schema.Format == FormatParquet || schema.derived():
		return nil, invalid("follow %s: a stream has no format parquet, and features only from the schema", path)
	case schema.Fitted():
		return nil, invalid("follow %s: standardize needs mean and std, because a stream has no training examples before it",
			path)
	}
	if path == Stdin {
		f.input = os.Stdin
		return f, nil
	}
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		f.folder = true
	case compressed(path):
		return nil, invalid("follow %s: a compressed file cannot be followed: decompress it first", path)
	case err == nil && !info.Mode().IsRegular():
		return nil, invalid("follow %s: want a file, a folder, or %s for standard input", path, Stdin)
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return nil, invalid("follow: %w", err)
	case err != nil:
		if up, err := os.Stat(filepath.Dir(path)); err != nil || !up.IsDir() {
			return nil, invalid("follow %s: its folder does not exist", path)
		}
	}
	return f, nil
}

// OnNote sets the function that gets notes about files that were replaced, truncated or removed. Call it before a
// stream is read.
func (f *Follow) OnNote(note func(string)) { f.note = note }

// Shape implements [Set].
func (f *Follow) Shape() Shape { return f.schema.Shape() }

// TrainSize implements [Set].
func (f *Follow) TrainSize() int64 { return 0 }

// Name implements [Set].
func (f *Follow) Name() string {
	if f.input != nil {
		return "standard input"
	}
	return f.path + ", followed"
}

// Train implements [Set].
func (f *Follow) Train(_ int64, rank, trainers int) (Source, error) {
	return f.Stream(rank, trainers, Place{})
}

// HeldSize implements [Set].
func (f *Follow) HeldSize() int64 { return 0 }

// Held implements [Set]: no examples are held out.
func (f *Follow) Held() (Source, error) {
	return nil, invalid("%s: a stream has no held-out examples", f.Name())
}

// Stream is the share of one trainer in a followed stream: of each file every trainers-th line.
type Stream struct {
	follow *Follow
	share  Share
	place  Place
	file   *growing    // being read; nil: none
	parser *lineParser // of file; nil before its first line
	quiet  time.Time   // when file last grew
	done   bool        // standard input has ended
}

// Stream opens the stream behind from; the zero Place is the beginning of everything.
func (f *Follow) Stream(rank, trainers int, from Place) (*Stream, error) {
	s := &Stream{follow: f, share: Share{To: -1, Rank: rank, Trainers: trainers}, place: from}
	if err := s.share.validate(); err != nil {
		return nil, err
	}
	if f.input != nil {
		if from.Bytes > 0 {
			f.note("standard input cannot be read again from its old position: continuing with new lines")
		}
		s.place = Place{Name: Stdin}
		s.file = &growing{name: Stdin, file: f.input, pipe: true}
		return s, nil
	}
	if from.Name == "" {
		return s, nil
	}
	return s, s.resume(from)
}

// Place returns the position after the last call of Next.
func (s *Stream) Place() Place { return s.place }

// Next implements [Source]. It returns a batch that is not full after half a second; without any example it soon
// returns [ErrNoneYet]. It returns io.EOF at the end of standard input.
func (s *Stream) Next(b *Batch) error {
	b.Reset()
	var first time.Time
	for size := b.size(s.follow.Shape()); b.N < size; {
		line, err := s.line()
		if err != nil {
			return err
		}
		switch {
		case line != nil:
			if err := s.take(line, b); err != nil {
				return err
			}
			if b.N == 1 && first.IsZero() {
				first = time.Now()
			}
		case s.done && b.N == 0:
			return io.EOF
		case s.done, b.N > 0 && time.Since(first) >= s.follow.times.linger:
			return nil
		default:
			moved, err := s.wait()
			if err != nil {
				return err
			}
			if !moved && b.N == 0 {
				return ErrNoneYet
			}
		}
	}
	return nil
}

// take adds a line of data to the batch, if it belongs to this trainer.
func (s *Stream) take(line []byte, b *Batch) error {
	number := s.place.Lines
	s.place.Lines++
	if len(line) == 0 { // an empty line is no example, but it has a number
		return nil
	}
	if number%int64(s.share.Trainers) != int64(s.share.Rank) {
		return nil
	}
	if b.N == 0 {
		b.First = number
	}
	b.Read++
	return s.parser.example(line, b)
}

// line returns the next whole line of data, nil if there is none now.
func (s *Stream) line() ([]byte, error) {
	for s.file != nil {
		line, err := s.file.line()
		if err != nil {
			return nil, err
		}
		if line == nil {
			return nil, nil
		}
		s.quiet = time.Time{}
		text, isData, err := s.read(line)
		if err != nil || isData {
			return text, err
		}
	}
	return nil, nil
}

// read counts a line, and consumes the header.
func (s *Stream) read(line []byte) (text []byte, isData bool, err error) {
	s.place.Bytes += int64(len(line))
	s.place.HeadBytes, s.place.HeadSum = s.file.head.size, s.file.head.sum
	text = trimLine(line, s.parser == nil)
	if s.parser == nil {
		if len(text) == 0 {
			return nil, false, nil
		}
		s.parser, err = s.newParser(text)
		if err != nil || s.parser.columns.header {
			return nil, false, err
		}
		return text, true, nil
	}
	*s.parser.line++
	return text, true, nil
}

// newParser finds the columns of a file by its first line.
func (s *Stream) newParser(first []byte) (*lineParser, error) {
	line := int64(1)
	p := &lineParser{enc: NewEncoder(s.follow.schema), path: s.file.name, line: &line}
	return p, p.begin(first)
}

// Skip implements [Source].
func (s *Stream) Skip(n int64) error {
	if n != 0 {
		return fmt.Errorf("a stream continues from a place, not behind %d examples", n)
	}
	return nil
}

// Close implements [Source].
func (s *Stream) Close() error {
	if s.file == nil || s.file.pipe {
		return nil
	}
	return s.file.file.Close()
}
