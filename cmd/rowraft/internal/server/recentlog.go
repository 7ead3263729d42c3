package server

import (
	"bytes"
	"io"
	"slices"
	"sync"
)

// recentLog keeps the last lines that were written to it, up to a number of bytes, so that an operator can see what a
// process did before a problem was noticed. Safe for concurrent use.
type recentLog struct {
	limitBytes int

	mu    sync.Mutex
	lines [][]byte // oldest first
	bytes int      // size of lines, with their line ends
}

// newRecentLog returns a log of up to limitBytes.
func newRecentLog(limitBytes int) *recentLog { return &recentLog{limitBytes: limitBytes} }

// Write appends one or more whole lines, as slog's handlers write them. Of a line that is longer than the
// limit it keeps the beginning. It never fails.
func (l *recentLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(b) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		l.lines = append(l.lines, bytes.Clone(line[:min(len(line), l.limitBytes-1)]))
		l.bytes += len(l.lines[len(l.lines)-1]) + 1
	}
	drop := 0
	for l.bytes > l.limitBytes {
		l.bytes -= len(l.lines[drop]) + 1
		drop++
	}
	l.lines = slices.Delete(l.lines, 0, drop)
	return len(b), nil
}

// WriteTo writes the lines, the oldest first.
func (l *recentLog) WriteTo(w io.Writer) (int64, error) {
	l.mu.Lock()
	text := bytes.Join(l.lines, []byte("\n"))
	l.mu.Unlock()
	if len(text) > 0 {
		text = append(text, '\n')
	}
	n, err := w.Write(text)
	return int64(n), err
}
