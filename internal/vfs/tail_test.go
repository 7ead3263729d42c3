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
			if name != "os" && tail.d == nil {
				t.Errorf("%s: the writes are cached", name)
			}
			want := slices.Clone(old[:end])
			for range 10 {
				var bufs [][]byte
				for range 1 + r.IntN(4) {
					bufs = append(bufs, randomContent(r.IntN(1+1<<r.IntN(20))))
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
			}
			if err := tail.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// plainFile is strictFile for a Tail.
type plainFile struct{ strictFile }

func (f *plainFile) ReadAt([]byte, int64) (int, error) { return 0, nil }

func (f *plainFile) WriteAt(p []byte, at int64) (int, error) {
	if f.writes++; f.writes == 2 && f.fail != nil {
		return 0, f.fail
	}
	if f.on && f.refuses {
		return 0, syscall.EINVAL
	}
	f.content = overwrite(f.content, p, at)
	return len(p), nil
}

// TestTailWithoutDirectWrites: a file system that accepts the flag and refuses the writes gets cached ones.
func TestTailWithoutDirectWrites(t *testing.T) {
	f := &plainFile{strictFile{refuses: true}}
	tail, err := NewTail(f, 0)
	if err != nil {
		t.Fatal(err)
	}
	var want []byte
	for i := range 5 {
		b := randomContent(3000 + i)
		want = append(want, b...)
		if err := tail.Append([][]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(f.content[:len(want)], want) || f.on {
		t.Errorf("direct: %v, equal: %v", f.on, bytes.Equal(f.content[:len(want)], want))
	}
}

func TestTailReturnsTheError(t *testing.T) {
	f := &plainFile{strictFile{fail: errors.New("bad disk")}}
	tail, err := NewTail(f, 0)
	if err == nil {
		err = tail.Append([][]byte{{1}})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := tail.Append([][]byte{{2}}); !errors.Is(err, f.fail) {
		t.Errorf("the append returned %v", err)
	}
}
