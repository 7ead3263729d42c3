package data

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// headMost is how many bytes at a file's beginning distinguish it from other files.
const headMost = 256

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// head is the checksum of a file's first bytes.
type head struct{ size, sum uint32 }

func (h *head) add(b []byte) {
	if n := min(len(b), headMost-int(h.size)); n > 0 {
		h.sum = crc32.Update(h.sum, castagnoli, b[:n])
		h.size += uint32(n)
	}
}

// growing reads the whole lines of a file while another process appends to it.
type growing struct {
	name string
	file *os.File
	pipe bool // not a file: reads may block, and its end is final

	buf   []byte // read bytes
	at    int    // bytes of buf that were returned
	seen  int    // bytes of buf behind at that contain no line end
	head  head   // the head of the returned bytes
	offer int64  // bytes of the file that were returned
	ended bool   // the pipe has ended
	final bool   // the file grows no more: the bytes behind the last line end are a line
}

// line returns the next line with its end, valid until the next call; nil if there is no whole line now.
func (g *growing) line() ([]byte, error) {
	for {
		if i := bytes.IndexByte(g.buf[g.at+g.seen:], '\n'); i >= 0 {
			return g.give(g.seen + i + 1), nil
		}
		g.seen = len(g.buf) - g.at
		if g.seen > maxLine {
			return nil, invalid("%s: behind byte %d: a line of more than %d bytes", g.name, g.offer, maxLine)
		}
		if more, err := g.fill(); err != nil {
			return nil, err
		} else if !more {
			if g.final && g.at < len(g.buf) {
				return g.give(len(g.buf) - g.at), nil
			}
			return nil, nil
		}
	}
}

func (g *growing) give(n int) []byte {
	line := g.buf[g.at : g.at+n]
	g.at, g.seen = g.at+n, 0
	g.offer += int64(n)
	g.head.add(line)
	return line
}

// fill reads more bytes; it returns false if there are none now.
func (g *growing) fill() (bool, error) {
	if g.ended || g.pipe && !g.readable(0) {
		return false, nil
	}
	g.buf = append(g.buf[:0], g.buf[g.at:]...)
	g.at = 0
	g.buf = slices.Grow(g.buf, 64<<10)
	n, err := g.file.Read(g.buf[len(g.buf):cap(g.buf)])
	g.buf = g.buf[:len(g.buf)+n]
	if errors.Is(err, io.EOF) {
		g.ended, err = g.pipe, nil
	}
	if err != nil {
		return false, invalid("%s: behind byte %d: %w", g.name, g.offer, err)
	}
	return n > 0, nil
}

// readable waits until a pipe has bytes, or has ended.
func (g *growing) readable(patience time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(g.file.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(patience.Milliseconds()))
	return err == nil && n > 0
}

// openAt opens a file at an offset.
func openAt(path string, offset int64) (*growing, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	g := &growing{name: path, file: f, offer: offset}
	first := make([]byte, min(offset, headMost))
	if _, err := f.ReadAt(first, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	g.head.add(first)
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return g, nil
}

// same reports whether the file that path names now begins as g did.
func (g *growing) same(file io.ReaderAt) bool {
	b := make([]byte, g.head.size)
	if _, err := file.ReadAt(b, 0); err != nil {
		return false
	}
	return crc32.Checksum(b, castagnoli) == g.head.sum
}

// trimLine removes the line end, and the byte order mark of a file's first line.
func trimLine(line []byte, first bool) []byte {
	line = bytes.TrimSuffix(line, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	if first {
		line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	return line
}

// names returns the data files in a folder, in order.
func names(folder string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, invalid("follow: %w", err)
	}
	var out []string
	for _, e := range entries {
		if n := e.Name(); e.Type().IsRegular() && n[0] != '.' && !strings.HasSuffix(n, ".tmp") &&
			!compressed(n) {
			out = append(out, n)
		}
	}
	return out, nil
}

// resume opens the file that was being read, under its present name.
func (s *Stream) resume(from Place) error {
	f := s.follow
	folder := f.path
	if !f.folder {
		folder = filepath.Dir(f.path)
	}
	candidates := []string{from.Name}
	if all, err := names(folder); err == nil && !f.folder {
		for _, n := range all { // log.1 was log when it was read
			if strings.HasPrefix(n, filepath.Base(f.path)+".") {
				candidates = append(candidates, n)
			}
		}
	}
	for _, name := range candidates {
		g, err := openAt(filepath.Join(folder, name), from.Bytes)
		if err != nil {
			continue // too short, or removed
		}
		if g.head.size != from.HeadBytes || g.head.sum != from.HeadSum {
			g.file.Close()
			continue
		}
		if name != from.Name {
			f.note(fmt.Sprintf("%s was renamed to %s: reading it to its end first", from.Name, name))
		}
		s.file = g
		return s.reparse()
	}
	f.note(fmt.Sprintf("%s is missing or has changed since it was read up to byte %d: later lines of it may be lost",
		from.Name, from.Bytes))
	s.place = Place{}
	if f.folder {
		s.place.Name = from.Name // files before it count as read
		if _, err := os.Stat(filepath.Join(folder, from.Name)); err == nil {
			return s.open(from.Name)
		}
	}
	return nil
}

// reparse reads the first line of a file whose beginning was read before the resume.
func (s *Stream) reparse() error {
	r, err := openAt(s.file.name, 0)
	if err != nil {
		return err
	}
	defer r.file.Close()
	for read := int64(0); read < s.place.Bytes; {
		line, err := r.line()
		if err != nil || line == nil {
			return err
		}
		read += int64(len(line))
		if text := trimLine(line, true); len(text) > 0 {
			s.parser, err = s.newParser(bytes.Clone(text))
			if err == nil && !s.parser.columns.header {
				*s.parser.line = 0
			}
			*s.parser.line += s.place.Lines // for messages
			return err
		}
	}
	return nil
}

// open begins to read a file.
func (s *Stream) open(name string) error {
	path := s.follow.path
	if s.follow.folder {
		path = filepath.Join(path, name)
	}
	g, err := openAt(path, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // it does not exist yet, or no longer
	}
	if err != nil {
		return invalid("follow: %w", err)
	}
	if err := s.Close(); err != nil {
		return err
	}
	s.file, s.parser, s.quiet = g, nil, time.Time{}
	s.place = Place{Name: name}
	return nil
}

// wait waits a moment for more bytes, and changes to the next file when it is time. moved reports that there may be
// something to read now.
func (s *Stream) wait() (moved bool, err error) {
	if g := s.file; g != nil && g.pipe {
		if g.ended {
			s.done = !s.finish()
			return true, nil
		}
		return g.readable(s.follow.times.poll), nil
	}
	if moved, err := s.moveOn(); moved || err != nil {
		return moved, err
	}
	time.Sleep(s.follow.times.poll)
	return false, nil
}

// moveOn checks whether the file that was read to its present end was renamed, truncated or replaced.
func (s *Stream) moveOn() (bool, error) {
	if s.file == nil {
		next, err := s.next()
		if err != nil || next == "" {
			return false, err
		}
		return true, s.open(next)
	}
	mine, err := s.file.file.Stat()
	if err != nil {
		return false, invalid("%s: %w", s.file.name, err)
	}
	unread := s.file.offer + int64(len(s.file.buf)-s.file.at)
	if mine.Size() < unread || !s.file.same(s.file.file) {
		s.follow.note(fmt.Sprintf("%s was truncated after %d bytes were read: reading it from its beginning",
			s.file.name, s.file.offer))
		return true, s.open(filepath.Base(s.file.name))
	}
	if mine.Size() > unread {
		s.quiet = time.Time{}
		return true, nil
	}
	next, err := s.next()
	if err != nil {
		return false, err
	}
	if next == "" {
		s.quiet = time.Time{}
		return false, nil
	}
	if s.quiet.IsZero() {
		s.quiet = time.Now()
	}
	if time.Since(s.quiet) < s.follow.times.settle {
		return false, nil
	}
	if s.finish() {
		return true, nil
	}
	if !s.follow.folder {
		s.follow.note(fmt.Sprintf("%s was replaced after %d bytes were read: continuing with the new one",
			s.follow.path, s.file.offer))
	}
	return true, s.open(next)
}

// finish makes line return the file's last line, even without a line end; it returns false if there is none left.
func (s *Stream) finish() bool {
	if s.file.final {
		return false
	}
	s.file.final = true
	return s.file.at < len(s.file.buf)
}

// next returns the name of the file after the present one, "" if there is none.
func (s *Stream) next() (string, error) {
	if !s.follow.folder {
		name := filepath.Base(s.follow.path)
		now, err := os.Stat(s.follow.path)
		if err != nil {
			return "", nil
		}
		if s.file != nil {
			if mine, err := s.file.file.Stat(); err != nil || os.SameFile(now, mine) {
				return "", nil
			}
		}
		return name, nil
	}
	all, err := names(s.follow.path)
	if err != nil {
		return "", err
	}
	i, found := slices.BinarySearch(all, s.place.Name)
	if found && s.place.Name != "" {
		i++
	}
	if i == len(all) {
		return "", nil
	}
	return all[i], nil
}
