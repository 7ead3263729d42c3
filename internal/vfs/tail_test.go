package vfs

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// TestTailAppends: a file has the bytes of all appends, whatever their sizes and the offset at which the tail begins.
// Bytes before the end never change, and those after it change up to the next block only.
func TestTailAppends(t *testing.T) {
	for name, disk := range map[string]FS{"os": OS, "memory": NewMem(), "faulty": NewFaulty(NewMem())} {
		dir := "/"
		if disk == OS {
			dir = t.TempDir()
		}
		for seed := range uint64(4) {
			r := rand.New(rand.NewPCG(seed, 5))
			path, old := filepath.Join(dir, "f"), randomContent(3*streamBytes)
			if err := WriteFile(disk, path, old); err != nil {
				t.Fatal(err)
			}
			f, err := disk.OpenFile(path, os.O_RDWR)
			if err != nil {
				t.Fatal(err)
			}
			end := r.IntN(3 * directBlock)
			tail, err := NewTail(f, int64(end))
			if err != nil {
				t.Fatal(err)
			}
			want := slices.Clone(old[:end])
			for i := range 10 {
				var bufs [][]byte
				for range 1 + r.IntN(4) {
					n := r.IntN(1 + 1<<r.IntN(20))
					if i == 5 && len(bufs) == 0 {
						n = 2*streamBytes + 77 // more than the buffer holds
					}
					bufs = append(bufs, randomContent(n))
					want = append(want, bufs[len(bufs)-1]...)
				}
				if err := tail.Append(bufs); err != nil {
					t.Fatal(err)
				}
				if tail.End() != int64(len(want)) {
					t.Fatalf("%s: the tail ends at %d, want %d", name, tail.End(), len(want))
				}
				got, err := ReadFile(disk, path)
				next := (len(want) + directBlock - 1) &^ (directBlock - 1)
				if err != nil || !bytes.Equal(got[:len(want)], want) || next < len(old) && !bytes.Equal(got[next:], old[next:]) {
					t.Fatalf("%s, seed %d: the file is wrong after %d bytes (%v)", name, seed, len(want), err)
				}
				if tail.d != nil && len(bytes.Trim(got[len(want):next], "\x00")) > 0 {
					t.Fatalf("%s, seed %d: the bytes after the end are not zero", name, seed)
				}
			}
			if name != "os" && tail.d == nil { // the disk would have refused a write that is no whole blocks
				t.Errorf("%s: the writes are cached", name)
			}
			if err := tail.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// plainFile is strictFile for a Tail: direct writes are multiples of block.
type plainFile struct {
	strictFile
	block int
}

func (f *plainFile) ReadAt([]byte, int64) (int, error) { return 0, nil }

func (f *plainFile) WriteAt(p []byte, at int64) (int, error) {
	if f.writes++; f.writes == 2 && f.fail != nil {
		return 0, f.fail
	}
	if whole := (int(at) + len(p)) / f.block * f.block; f.on && int(at)+len(p) != whole {
		n := max(0, whole-int(at))
		f.content = overwrite(f.content, p[:n], at)
		return n, syscall.EINVAL
	}
	f.content = overwrite(f.content, p, at)
	return len(p), nil
}

// TestTailWithoutDirectWrites: a file system that refuses direct writes, at once or later, gets cached ones.
func TestTailWithoutDirectWrites(t *testing.T) {
	for _, block := range []int{4 * directBlock, 1 << 30} {
		for _, first := range []int{3000, 4 * directBlock, streamBytes + 5000} {
			f := &plainFile{block: block}
			tail, err := NewTail(f, 0)
			if err != nil {
				t.Fatal(err)
			}
			var want []byte
			for i := range 5 {
				b := randomContent(first + i)
				want = append(want, b...)
				if err := tail.Append([][]byte{b}); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(f.content[:len(want)], want) || f.on {
				t.Errorf("blocks of %d, first %d: direct: %v, equal: %v", block, first, f.on,
					bytes.Equal(f.content[:len(want)], want))
			}
		}
	}
}

func TestTailReturnsTheError(t *testing.T) {
	for _, sizes := range [][]int{{1, 1}, {streamBytes + 1}} { // the second write fails
		f := &plainFile{strictFile{fail: errors.New("bad disk")}, directBlock}
		tail, err := NewTail(f, 0)
		for _, n := range sizes {
			if err == nil {
				err = tail.Append([][]byte{randomContent(n)})
			}
		}
		if !errors.Is(err, f.fail) {
			t.Errorf("appends of %v bytes returned %v", sizes, err)
		}
	}
}

// TestTailOnAFullDisk: a write that fails because the disk is full has written whole blocks, and is not tried again.
func TestTailOnAFullDisk(t *testing.T) {
	disk := NewFaulty(NewMem())
	f, err := disk.OpenFile("/f", os.O_CREATE|os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	tail, err := NewTail(f, 0)
	if err == nil {
		err = disk.Set(DiskFault{Ops: []Op{OpWrite}, Err: "ENOSPC", Times: 1})
	}
	if err != nil {
		t.Fatal(err)
	}
	err = tail.Append([][]byte{randomContent(5*directBlock - 1)})
	if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL) {
		t.Errorf("the append returned %v", err)
	}
	if got, err := ReadFile(disk, "/f"); err != nil || len(got) != 2*directBlock {
		t.Errorf("the file has %d bytes (%v), want %d", len(got), err, 2*directBlock)
	}
}

// writeAll writes more buffers than one system call takes, of any length, also none, on each disk.
func TestWriteAllWritesEachBuffer(t *testing.T) {
	for name, disk := range map[string]FS{"memory": NewMem(), "OS": OS} {
		path := filepath.Join("/", "f")
		if disk == OS {
			path = filepath.Join(t.TempDir(), "f")
		}
		f, err := disk.OpenFile(path, os.O_CREATE|os.O_RDWR)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		want := []byte("before")
		if _, err := f.WriteAt(want, 0); err != nil {
			t.Fatal(err)
		}
		bufs := [][]byte{nil}
		for i := range 2500 {
			bufs = append(bufs, bytes.Repeat([]byte{byte(i)}, i%7))
		}
		want = append(want, bytes.Join(bufs, nil)...)
		n, err := writeAll(f, bufs, int64(len("before")))
		if err == nil {
			_, err = writeAll(f, [][]byte{nil, {}}, 0)
		}
		if err != nil || n != int64(len(want)-len("before")) {
			t.Errorf("%s: %d bytes, %v; want %d", name, n, err, len(want)-len("before"))
		}
		if got, err := ReadFile(disk, path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the file has %d bytes (%v), want %d", name, len(got), err, len(want))
		}
	}
}
