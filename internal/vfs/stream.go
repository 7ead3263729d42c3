package vfs

import (
	"errors"
	"syscall"
	"unsafe"
)

const (
	streamBytes = 1 << 20 // of one write
	directBlock = 4096
)

// directer is a file whose writes can go to the disk past the system's cache.
type directer interface {
	// direct turns that on or off, and reports whether it is on. While it is, the offset, the
	// length and the memory of every write are multiples of directBlock.
	direct(on bool) bool
}

// Stream writes a large file from its begin to its end, where the system can past its cache.
// What lies in the cache goes to the disk in bulk, and every Sync of another file waits
// behind it: of a log that was synced after each 512 KiB, 4 to 60 % of the rate was left beside a file
// of 256 MiB written through the cache, and all of it beside one written past it.
// What goes past the cache is written while the next streamBytes are made, so that a disk and
// who makes them do not wait for each other in turns. Used by one goroutine.
type Stream struct {
	f   File
	d   directer // nil: through the cache
	buf []byte   // cap streamBytes, at a multiple of directBlock

	asked   []byte     // likewise: what is being written
	written chan error // the end of that; nil: nothing is
	proved  bool       // a direct write went well
}

// NewStream writes to f, which is empty.
func NewStream(f File) *Stream {
	s := &Stream{f: f, buf: alignedBuffer(streamBytes)}
	if d, ok := f.(directer); ok && d.direct(true) {
		s.d = d
	}
	return s
}

func alignedBuffer(n int) []byte {
	b := make([]byte, n+directBlock)
	off := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (directBlock - 1)
	return b[off : off : off+n]
}

// Write takes p; a part of it stays in memory until the next Write or Finish. After an
// error nothing more may be written.
func (s *Stream) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := copy(s.buf[len(s.buf):cap(s.buf)], rest)
		s.buf = s.buf[:len(s.buf)+n]
		rest = rest[n:]
		if len(s.buf) == cap(s.buf) {
			if err := s.flush(); err != nil {
				return 0, err
			}
		}
	}
	return len(p), nil
}

// Finish writes what is left. It makes nothing durable and leaves the file open.
func (s *Stream) Finish() error {
	if err := s.Wait(); err != nil {
		return err
	}
	if s.d != nil { // the end is no whole block
		s.d.direct(false)
		s.d = nil
	}
	return s.flush()
}

// Wait ends what is being written: who gives the stream up waits before closing the file.
func (s *Stream) Wait() error {
	if s.written == nil {
		return nil
	}
	err := <-s.written
	s.written = nil
	return err
}

func (s *Stream) flush() error {
	if err := s.Wait(); err != nil {
		return err
	}
	if s.d != nil && s.proved {
		if s.asked == nil {
			s.asked = alignedBuffer(streamBytes)
		}
		s.buf, s.asked = s.asked[:0], s.buf
		s.written = make(chan error, 1)
		go func(f File, b []byte, done chan<- error) {
			_, err := f.Write(b)
			done <- err
		}(s.f, s.asked, s.written)
		return nil
	}
	n, err := s.f.Write(s.buf)
	if s.d != nil && errors.Is(err, syscall.EINVAL) { // a file system that says yes and means no
		s.d.direct(false)
		s.d = nil
		_, err = s.f.Write(s.buf[n:])
	}
	s.proved = err == nil
	s.buf = s.buf[:0]
	return err
}
