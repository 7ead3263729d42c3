package vfs

import (
	"errors"
	"syscall"
)

// Tail appends to a file that other descriptors read, past the page cache if the file system can do that: a log that is
// synced after each append gains nothing from the cache, and an append through it takes 1.6 times as much CPU time
// (BenchmarkAppend in raftstore/raftlog).
//
// A direct write consists of whole blocks. So the next append writes the last block again if it is not full, with the
// same bytes and those that follow them. The bytes after the end, up to the next block, become zero. One goroutine uses
// it.
type Tail struct {
	f   File
	d   directer // nil: writes use the page cache
	end int64
	buf []byte // for direct writes: the bytes from the start of the last block on, at a multiple of directBlock
}

// minTail is the first size of the buffer: tests start many servers that append little.
const minTail = 4 * directBlock

// NewTail returns the tail of f that begins at offset end, at most the length of f. Close closes f. Readers, and the
// caller of Sync, open the file once more.
func NewTail(f File, end int64) (*Tail, error) {
	t := &Tail{f: f, end: end}
	d, ok := f.(directer)
	if !ok {
		return t, nil
	}
	t.buf = alignedBuffer(minTail)[:end%directBlock]
	if _, err := f.ReadAt(t.buf, end-int64(len(t.buf))); err != nil {
		return nil, err
	}
	if d.direct(true) {
		t.d = d
	}
	return t, nil
}

// End returns the offset of the next append.
func (t *Tail) End() int64 { return t.end }

// Append writes bufs one after the other and changes their elements. After an error nothing may be appended.
func (t *Tail) Append(bufs [][]byte) error {
	if t.d == nil {
		n, err := writeAll(t.f, bufs, t.end)
		t.end += n
		return err
	}
	t.grow(bufs)
	for _, b := range bufs {
		for len(b) > 0 {
			if len(t.buf) == cap(t.buf) {
				if err := t.flush(); err != nil {
					return err
				}
			}
			n := copy(t.buf[len(t.buf):cap(t.buf)], b)
			t.buf, b = t.buf[:len(t.buf)+n], b[n:]
			t.end += int64(n)
		}
	}
	return t.flush()
}

// grow makes room in buf for bufs, up to streamBytes.
func (t *Tail) grow(bufs [][]byte) {
	size := cap(t.buf)
	want := len(t.buf) + directBlock
	for _, b := range bufs {
		want += len(b)
	}
	for size < want && size < streamBytes {
		size *= 2
	}
	if size > cap(t.buf) {
		t.buf = append(alignedBuffer(size), t.buf...)
	}
}

// flush writes buf and keeps what does not fill a block.
func (t *Tail) flush() error {
	if len(t.buf) == 0 {
		return nil
	}
	whole := len(t.buf) &^ (directBlock - 1)
	last := len(t.buf) - whole
	padded := t.buf
	if last > 0 {
		padded = t.buf[:whole+directBlock]
		clear(padded[len(t.buf):])
	}
	at := t.end - int64(len(t.buf))
	n, err := t.f.WriteAt(padded, at)
	if t.d != nil && errors.Is(err, syscall.EINVAL) { // the file system has larger blocks, or accepts only the flag
		t.d.direct(false)
		t.d = nil
		_, err = t.f.WriteAt(padded[n:], at+int64(n))
	}
	copy(t.buf, t.buf[whole:])
	t.buf = t.buf[:last]
	return err
}

// Close closes the file.
func (t *Tail) Close() error { return t.f.Close() }
