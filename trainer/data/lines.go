package data

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
)

// maxLine limits the memory for a file without line ends.
const maxLine = 1 << 20

// lines reads a text file line by line.
type lines struct {
	path   string
	in     io.ReadCloser
	buf    []byte
	at     int   // bytes of buf that were returned
	offset int64 // of buf[at], in the decompressed text
	ended  bool  // buf has the end of the file
	line   int64 // number of the line last read, from 1
}

func openLines(path string) (*lines, error) {
	in, err := openStream(path)
	if err != nil {
		return nil, err
	}
	return &lines{path: path, in: in, buf: make([]byte, 0, 256<<10)}, nil
}

// next returns the next line that is not empty, without its end; the slice is valid until the next call. io.EOF
// after the last line.
func (l *lines) next() ([]byte, error) {
	for {
		line, err := l.whole()
		if err != nil {
			return nil, err
		}
		l.line++
		l.offset += int64(len(line))
		line = trimLine(line, l.line == 1)
		if len(line) > 0 {
			return line, nil
		}
	}
}

// whole returns the next line with its end.
func (l *lines) whole() ([]byte, error) {
	seen := 0
	for {
		if i := bytes.IndexByte(l.buf[l.at+seen:], '\n'); i >= 0 {
			line := l.buf[l.at : l.at+seen+i+1]
			l.at += len(line)
			return line, nil
		}
		seen = len(l.buf) - l.at
		switch {
		case l.ended && seen == 0:
			return nil, io.EOF
		case l.ended:
			line := l.buf[l.at:]
			l.at = len(l.buf)
			return line, nil
		case seen > maxLine:
			l.line++
			return nil, l.errorf("a line of more than %d bytes", maxLine)
		}
		l.buf = l.buf[:copy(l.buf, l.buf[l.at:])]
		l.at = 0
		l.buf = slices.Grow(l.buf, min(cap(l.buf), 64<<10))
		n, err := l.in.Read(l.buf[len(l.buf):cap(l.buf)])
		l.buf = l.buf[:len(l.buf)+n]
		if err == io.EOF {
			l.ended = true
		} else if err != nil {
			return nil, invalid("%s: after line %d: %w", l.path, l.line, err)
		}
	}
}

// seek continues at a mark of an uncompressed file.
func (l *lines) seek(m mark) error {
	if _, err := l.in.(io.Seeker).Seek(m.offset, io.SeekStart); err != nil {
		return invalid("%s: %w", l.path, err)
	}
	l.buf, l.at, l.ended, l.offset, l.line = l.buf[:0], 0, false, m.offset, m.line
	return nil
}

// errorf returns an error at the last line that was read.
func (l *lines) errorf(format string, args ...any) error {
	return invalid("%s:%d: %s", l.path, l.line, fmt.Sprintf(format, args...))
}

func (l *lines) close() error { return l.in.Close() }

// cells finds where the values of a line without quotes end: value i is line[ends[i]+1:ends[i+1]].
//
// It compares eight bytes at a time: a byte of w is zero, and its high bit in found set, where the line has the
// separator (Warren, Hacker's Delight, 6-1; without false hits behind a hit).
func cells(ends []int32, line []byte, separator byte, most int) []int32 {
	const low, all = 0x7f7f7f7f7f7f7f7f, 0x0101010101010101
	ends = append(ends[:0], -1)
	pattern := uint64(separator) * all
	i := 0
	for ; i+8 <= len(line); i += 8 {
		w := binary.LittleEndian.Uint64(line[i:]) ^ pattern
		for found := ^((w&low + low) | w | low); found != 0; found &= found - 1 {
			ends = append(ends, int32(i+bits.TrailingZeros64(found)>>3))
		}
		if most > 0 && len(ends) > most {
			return ends
		}
	}
	for ; i < len(line); i++ {
		if line[i] == separator {
			ends = append(ends, int32(i))
		}
	}
	return append(ends, int32(len(line)))
}

// splitter splits a line into values.
type splitter struct {
	separator    byte
	quotes, trim bool
	most         int // split returns at most so many values; 0: all
	values       [][]byte
	unquoted     []byte // scratch for values with doubled quotes
	line         []byte // that lineParser cut
	quoting      bool   // values has its values
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
