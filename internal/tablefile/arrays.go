package tablefile

import (
	"errors"
	"fmt"
	"io"
	"math/bits"

	"github.com/rowraft/rowraft"
)

// array is a range of a file with numbers one after the other.
type array struct {
	r  io.ReaderAt
	at int64
}

// read fills b with the bytes from offset on.
func (a array) read(b []byte, offset int64) error {
	n, err := a.r.ReadAt(b, a.at+offset)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return corruptf("it became shorter while it was read")
	}
	return err
}

// arrays are rows with their ids in one array and their vectors in another.
type arrays struct {
	ids, vectors array
	rows         uint64
	dim          int
	typ          number
	meta         Meta

	at  uint64 // number of the next row
	buf []byte
}

func (a *arrays) info() Info {
	return Info{Rows: a.rows, Dim: a.dim, Numbers: a.typ.String(), Meta: a.meta}
}

func (a *arrays) rewind() error { a.at = 0; return nil }

// take returns how many of n rows are left, and the position of the first one.
func (a *arrays) take(n int) (int, int64, error) {
	left := a.rows - a.at
	if left == 0 {
		return 0, 0, io.EOF
	}
	n = int(min(uint64(n), left))
	at := int64(a.at)
	a.at += uint64(n)
	return n, at, nil
}

func (a *arrays) scratch(n int) []byte {
	if cap(a.buf) < n {
		a.buf = make([]byte, n)
	}
	return a.buf[:n]
}

func (a *arrays) nextKeys(keys []rowraft.Key) (int, error) {
	n, at, err := a.take(len(keys))
	if err != nil {
		return 0, err
	}
	return n, a.readKeys(keys[:n], at)
}

func (a *arrays) readKeys(keys []rowraft.Key, at int64) error {
	b := a.scratch(8 * len(keys))
	if err := a.ids.read(b, 8*at); err != nil {
		return fmt.Errorf("ids: %w", err)
	}
	getKeys(keys, b)
	return nil
}

func (a *arrays) next(keys []rowraft.Key, values []float32) (int, error) {
	n, at, err := a.take(len(keys))
	if err != nil {
		return 0, err
	}
	if err := a.readKeys(keys[:n], at); err != nil {
		return 0, err
	}
	row := a.dim * a.typ.size()
	b := a.scratch(n * row)
	if err := a.vectors.read(b, at*int64(row)); err != nil {
		return 0, fmt.Errorf("vectors: %w", err)
	}
	a.typ.get(values[:n*a.dim], b)
	return n, nil
}

// arrayBytes returns rows × dim × size, or false if that overflows an int64.
func arrayBytes(rows, dim uint64, size int) (int64, bool) {
	hi, n := bits.Mul64(rows, dim)
	hi2, n2 := bits.Mul64(n, uint64(size))
	if hi != 0 || hi2 != 0 || n2 > 1<<63-1 {
		return 0, false
	}
	return int64(n2), true
}
