package data

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxLine limits the memory for a file without line ends.
const maxLine = 1 << 20

// lines reads a text file line by line, gunzipping it if its name ends in .gz.
type lines struct {
	path string
	file *os.File
	gz   *gzip.Reader // nil if not compressed
	in   *bufio.Reader
	line int64  // number of the line last read, from 1
	long []byte // scratch for lines longer than the reader's buffer
}

func openLines(path string) (*lines, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, invalid("data: %w", err)
	}
	l := &lines{path: path, file: f}
	var r io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		if l.gz, err = gzip.NewReader(bufio.NewReaderSize(f, 64<<10)); err != nil {
			f.Close()
			return nil, invalid("%s: the name ends in .gz, but it is not gzip: %w", path, err)
		}
		r = l.gz
	}
	l.in = bufio.NewReaderSize(r, 64<<10)
	return l, nil
}

// next returns the next line that is not empty, without its end; the slice is valid until the next call. io.EOF
// after the last line.
func (l *lines) next() ([]byte, error) {
	for {
		line, err := l.in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			l.long = append(l.long[:0], line...)
			for errors.Is(err, bufio.ErrBufferFull) && len(l.long) <= maxLine {
				line, err = l.in.ReadSlice('\n')
				l.long = append(l.long, line...)
			}
			line = l.long
			if len(line) > maxLine {
				l.line++
				return nil, l.errorf("a line of more than %d bytes", maxLine)
			}
		}
		if err != nil && err != io.EOF {
			return nil, invalid("%s: after line %d: %w", l.path, l.line, err)
		}
		if err == io.EOF && len(line) == 0 {
			return nil, io.EOF
		}
		l.line++
		line = bytes.TrimSuffix(line, []byte("\n"))
		line = bytes.TrimSuffix(line, []byte("\r"))
		if l.line == 1 {
			line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf")) // byte order mark
		}
		if len(line) > 0 {
			return line, nil
		}
	}
}

// errorf returns an error at the last line that was read.
func (l *lines) errorf(format string, args ...any) error {
	return invalid("%s:%d: %s", l.path, l.line, fmt.Sprintf(format, args...))
}

func (l *lines) close() error {
	if l.gz != nil {
		l.gz.Close()
	}
	return l.file.Close()
}

// splitter splits a line into values.
type splitter struct {
	separator    byte
	quotes, trim bool
	most         int // split returns at most so many values; 0: all
	values       [][]byte
	unquoted     []byte // scratch for values with doubled quotes
}

var errQuote = errors.New(`a quote is not closed, or something follows the closing one: ` +
	`want "value", with quotes inside doubled, on one line`)

// split returns the values of line; they point into it, or into scratch, and are valid until the next call.
func (s *splitter) split(line []byte) ([][]byte, error) {
	s.values, s.unquoted = s.values[:0], s.unquoted[:0]
	for {
		if s.most > 0 && len(s.values) == s.most {
			return s.values, nil
		}
		if s.trim {
			line = bytes.TrimLeft(line, " ")
		}
		if s.quotes && len(line) > 0 && line[0] == '"' {
			rest, err := s.quoted(line[1:])
			if err != nil {
				return nil, err
			}
			if rest == nil {
				return s.values, nil
			}
			line = rest
			continue
		}
		end := bytes.IndexByte(line, s.separator)
		value := line
		if end >= 0 {
			value = line[:end]
		}
		if s.trim {
			value = bytes.TrimRight(value, " ")
		}
		s.values = append(s.values, value)
		if end < 0 {
			return s.values, nil
		}
		line = line[end+1:]
	}
}

// quoted adds a value after its opening quote, and returns what follows the separator, or nil at the end of the
// line.
func (s *splitter) quoted(line []byte) (rest []byte, err error) {
	start := len(s.unquoted)
	for {
		end := bytes.IndexByte(line, '"')
		if end < 0 {
			return nil, errQuote
		}
		s.unquoted = append(s.unquoted, line[:end]...)
		line = line[end+1:]
		if len(line) == 0 || line[0] != '"' {
			break
		}
		s.unquoted = append(s.unquoted, '"')
		line = line[1:]
	}
	s.values = append(s.values, s.unquoted[start:len(s.unquoted):len(s.unquoted)])
	if s.trim {
		line = bytes.TrimLeft(line, " ")
	}
	switch {
	case len(line) == 0:
		return nil, nil
	case line[0] != s.separator:
		return nil, errQuote
	}
	return line[1:], nil
}
