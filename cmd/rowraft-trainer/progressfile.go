package main

import (
	"os"
)

// progressFileBytes is how long a file of --progress-file may become: a run that follows a stream has no end.
const progressFileBytes = 64 << 20

// progressFile is a file to which lines are appended. When one more would make it longer than it may be, it becomes
// NAME.1, in the place of the one before, and another begins. What is no regular file grows as it likes.
//
// Not safe for concurrent use.
type progressFile struct {
	file  *os.File
	limit int64
	size  int64
	whole bool // a regular file
}

func openProgressFile(name string, limit int64) (*progressFile, error) {
	f := &progressFile{limit: limit}
	return f, f.open(name)
}

func (f *progressFile) open(name string) error {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	st, err := file.Stat()
	if err != nil {
		file.Close()
		return err
	}
	f.file, f.size, f.whole = file, st.Size(), st.Mode().IsRegular()
	return nil
}

// Write appends a line.
func (f *progressFile) Write(line []byte) (int, error) {
	if f.whole && f.size > 0 && f.size+int64(len(line)) > f.limit {
		f.turn()
	}
	n, err := f.file.Write(line)
	f.size += int64(n)
	return n, err
}

// turn begins another file. One that cannot be begun is told by nobody: the old one grows on.
func (f *progressFile) turn() {
	name, full := f.file.Name(), f.file
	if os.Rename(name, name+".1") == nil && f.open(name) == nil {
		full.Close()
	}
}

// Close may be called twice.
func (f *progressFile) Close() { f.file.Close() }
