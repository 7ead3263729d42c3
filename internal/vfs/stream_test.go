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
	"unsafe"
)

// streamed writes content to f in chunks of all sizes.
func streamed(f File, content []byte) error {
	s, r := NewStream(f), rand.New(rand.NewPCG(1, 2))
	for rest := content; len(rest) > 0; {
		n := min(len(rest), 1+r.IntN(700_000))
		if _, err := s.Write(rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return s.Finish()
}

func streamSizes() []int {
	return []int{0, 1, directBlock, streamBytes - 1, streamBytes, streamBytes + 1, 3*streamBytes + 77}
}

func randomContent(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(3, uint64(n)))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestStreamWritesAllOfIt(t *testing.T) {
	for name, disk := range map[string]FS{"os": OS, "memory": NewMem()} {
		dir := "/"
		if name == "os" {
			dir = t.TempDir()
		}
		for _, size := range streamSizes() {
			path, content := filepath.Join(dir, "f"), randomContent(size)
			f, err := disk.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(streamed(f, content), f.Sync(), f.Close()); err != nil {
				t.Fatalf("%s, %d bytes: %v", name, size, err)
			}
			if got, err := ReadFile(disk, path); err != nil || !bytes.Equal(got, content) {
				t.Errorf("%s, %d bytes: read %d back, equal %v, %v", name, size, len(got), bytes.Equal(got, content), err)
			}
		}
	}
}

// strictFile is a file that refuses, while it is direct, all writes that a real file may refuse.
type strictFile struct {
	File
	on      bool
	content []byte
	refuses bool  // refuses all direct writes
	fail    error // error of the second write
	writes  int
}

func (f *strictFile) direct(on bool) bool {
	f.on = on
	return on
}

func (f *strictFile) Write(p []byte) (int, error) {
	if f.writes++; f.writes == 2 && f.fail != nil {
		return 0, f.fail
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(p)))
	if f.on && (f.refuses || (uintptr(len(f.content))|uintptr(len(p))|at)%directBlock != 0) {
		return 0, syscall.EINVAL
	}
	f.content = slices.Concat(f.content, p)
	return len(p), nil
}

// TestStreamPastTheCache: whole blocks are written directly, the end is not, and a file system that refuses
// direct writes gets cached ones.
func TestStreamPastTheCache(t *testing.T) {
	for _, refuses := range []bool{false, true} {
		for _, size := range streamSizes() {
			f, content := &strictFile{refuses: refuses}, randomContent(size)
			if err := streamed(f, content); err != nil || !bytes.Equal(f.content, content) {
				t.Fatalf("refuses %v, %d bytes: %d were written, %v", refuses, size, len(f.content), err)
			}
			if want := size/streamBytes + 1; !refuses && f.writes != want {
				t.Errorf("%d bytes: %d writes, want %d: one failed and was repeated", size, f.writes, want)
			}
		}
	}
	bad := &strictFile{fail: errors.New("bad disk")}
	if err := streamed(bad, randomContent(3*streamBytes)); !errors.Is(err, bad.fail) {
		t.Errorf("a disk that fails: %v", err)
	}
}

// slowFile delays its writes, after the first, until the test releases them.
type slowFile struct {
	strictFile
	begun, goOn chan struct{}
}

func (f *slowFile) Write(p []byte) (int, error) {
	if f.writes > 0 {
		f.begun <- struct{}{}
		<-f.goOn
	}
	return f.strictFile.Write(p)
}

// TestStreamDoesNotWaitForTheDisk: while one write is running the caller fills the next buffer, but not a
// third one; Wait and Finish wait for the write and return its result.
func TestStreamDoesNotWaitForTheDisk(t *testing.T) {
	for _, bad := range []error{nil, errors.New("bad disk")} {
		f := &slowFile{strictFile: strictFile{fail: bad}, begun: make(chan struct{}), goOn: make(chan struct{})}
		s, content := NewStream(f), randomContent(3*streamBytes+77)
		if _, err := s.Write(content[:3*streamBytes-1]); err != nil {
			t.Fatal(err)
		}
		<-f.begun // and Write has returned
		done := make(chan error, 1)
		go func() {
			_, err := s.Write(content[3*streamBytes-1:])
			done <- err
		}()
		f.goOn <- struct{}{}
		if bad != nil {
			if err := <-done; !errors.Is(err, bad) {
				t.Errorf("the write after the one that failed: %v", err)
			}
			continue
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		<-f.begun
		go func() { done <- s.Wait() }()
		f.goOn <- struct{}{}
		if err := <-done; err != nil || len(f.content) != 3*streamBytes {
			t.Errorf("%v, %d bytes written after Wait", err, len(f.content))
		}
		go func() {
			<-f.begun
			f.goOn <- struct{}{}
		}()
		if err := s.Finish(); err != nil || !bytes.Equal(f.content, content) {
			t.Errorf("%v, %d of %d bytes", err, len(f.content), len(content))
		}
	}
}
