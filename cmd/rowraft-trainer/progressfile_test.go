package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file of progress never gets longer than it may: the lines before the newest are in NAME.1, older ones are
// gone. Who is started again goes on at its end.
func TestAProgressFileIsBounded(t *testing.T) {
	const limit, lines, width = 100, 57, 10
	name := filepath.Join(t.TempDir(), "progress")
	for next := 0; next < lines; {
		f, err := openProgressFile(name, limit)
		if err != nil {
			t.Fatal(err)
		}
		for range 13 {
			if next < lines {
				fmt.Fprintf(f, "line %04d\n", next)
				next++
			}
		}
		f.Close()
		f.Close()
	}
	read := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > limit {
			t.Errorf("%s has %d bytes, want at most %d", name, len(b), limit)
		}
		return string(b)
	}
	got := read(name+".1") + read(name)
	want := ""
	for i := lines - len(got)/width; i < lines; i++ {
		want += fmt.Sprintf("line %04d\n", i)
	}
	if got != want || strings.Count(got, "\n") <= limit/width {
		t.Errorf("the two files hold\n%swant\n%s", got, want)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(name), "*"))
	if err != nil || len(left) != 2 {
		t.Errorf("files %v, %v, want two", left, err)
	}
}

// What is no file of its own is written to as it is.
func TestProgressGoesToADevice(t *testing.T) {
	f, err := openProgressFile(os.DevNull, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 3 {
		if n, err := f.Write([]byte("a line\n")); n != 7 || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
	}
}
