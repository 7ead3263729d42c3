package main

import (
	"os"
)

// progressFileBytes limits a file of --progress-file, because a run that follows a stream has no end.
const progressFileBytes = 64 << 20

// progressFile is a file to which lines are appended. Before a line would exceed the limit, the file is renamed to
// NAME.1, which replaces the previous NAME.1, and a new file begins. A file that is not regular has no limit.
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
		f.rotate()
	}
	n, err := f.file.Write(line)
	f.size += int64(n)
	return n, err
}

// rotate begins a new file. If it cannot, it reports no error and the old file grows: progress must not end a run.
func (f *progressFile) rotate() {
	name, full := f.file.Name(), f.file
	if os.Rename(name, name+".1") == nil && f.open(name) == nil {
		full.Close()
	}
}

// Close may be called twice.
func (f *progressFile) Close() { f.file.Close() }
