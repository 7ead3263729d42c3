package data

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
)

const streamHeader = "click,ad\n"

// streamLine is the i-th line of a stream, whose key tells it.
func streamLine(i int) string { return fmt.Sprintf("%d,ad%d\n", i%2, i) }

func streamLines(from, to int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		b.WriteString(streamLine(i))
	}
	return b.String()
}

// follower reads a stream step by step.
type follower struct {
	t      *testing.T
	follow *Follow
	stream *Stream
	notes  []string
	number map[rowraft.Key]int // of the example with that key
	got    []int
}

// follow begins at from; a test waits in milliseconds.
func follow(t *testing.T, path string, rank, trainers int, from Place) *follower {
	t.Helper()
	schema := &Schema{Label: Label{Column: Column{Column: "click"}},
		Categorical: []Categorical{{Column: Column{Column: "ad"}}}}
	if err := schema.complete(); err != nil {
		t.Fatal(err)
	}
	f := &follower{t: t, number: make(map[rowraft.Key]int)}
	for i := range 1000 {
		f.number[NewHasher("ad").Key(fmt.Appendf(nil, "ad%d", i))] = i
	}
	var err error
	if f.follow, err = OpenFollow(path, schema); err != nil {
		t.Fatal(err)
	}
	f.follow.OnNote(func(s string) { f.notes = append(f.notes, s) })
	f.follow.times = waits{poll: time.Millisecond, linger: 5 * time.Millisecond, settle: 10 * time.Millisecond}
	if f.stream, err = f.follow.Stream(rank, trainers, from); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.stream.Close() })
	return f
}

// next reads until there is a batch of at most size, or the end.
func (f *follower) next(size int) error {
	f.t.Helper()
	b := NewBatch(size, f.follow.Shape())
	for deadline := time.Now().Add(3 * time.Minute); ; {
		err := f.stream.Next(b)
		if errors.Is(err, ErrNoneYet) && time.Now().Before(deadline) {
			continue
		}
		for i := range b.N {
			n, ok := f.number[b.Keys[i]]
			if !ok || int(b.Labels[i]) != n%2 {
				f.t.Fatalf("example %d has key %d and label %v", i, b.Keys[i], b.Labels[i])
			}
			f.got = append(f.got, n)
		}
		return err
	}
}

// until reads until n examples were read.
func (f *follower) until(n int) {
	f.t.Helper()
	for len(f.got) < n {
		if err := f.next(4); err != nil {
			f.t.Fatalf("after %d examples: %v", len(f.got), err)
		}
	}
}

// quiet wants nothing to come.
func (f *follower) quiet() {
	f.t.Helper()
	b := NewBatch(4, f.follow.Shape())
	for range 20 {
		if err := f.stream.Next(b); !errors.Is(err, ErrNoneYet) {
			f.t.Fatalf("Next: %d examples, %v; nothing should be there", b.N, err)
		}
	}
}

func (f *follower) wants(from, to int) {
	f.t.Helper()
	var want []int
	for i := from; i < to; i++ {
		want = append(want, i)
	}
	if !slices.Equal(f.got, want) {
		f.t.Errorf("read %v, want %d to %d once each", f.got, from, to-1)
	}
}

// told wants one note, with the text.
func (f *follower) told(text string) {
	f.t.Helper()
	if len(f.notes) != 1 || !strings.Contains(f.notes[0], text) {
		f.t.Errorf("notes %q, want one with %q", f.notes, text)
	}
}

// put appends text to a file.
func put(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestAStreamReadsWhatIsAppended(t *testing.T) {
	path := filepath.Join(t.TempDir(), "clicks.csv")
	f := follow(t, path, 0, 1, Place{})
	f.quiet() // it is not there yet
	put(t, path, streamHeader[:4])
	f.quiet()
	put(t, path, streamHeader[4:]+streamLines(0, 6))
	f.until(6)
	f.quiet()
	half := streamLine(6)
	put(t, path, half[:3]) // a line without its end waits
	f.quiet()
	put(t, path, half[3:]+streamLines(7, 9))
	f.until(9)
	f.wants(0, 9)
	if len(f.notes) > 0 {
		t.Errorf("notes: %q", f.notes)
	}
}

// A stream that goes on from any place reads the same as one that was never stopped.
func TestAStreamGoesOnFromEachPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "clicks.csv")
	put(t, path, "\xef\xbb\xbf"+streamHeader+streamLines(0, 12)+"1,")
	for size := 1; size <= 4; size++ {
		var from Place
		var got []int
		for len(got) < 12 {
			f := follow(t, path, 0, 1, from)
			if err := f.next(size); err != nil {
				t.Fatal(err)
			}
			got, from = append(got, f.got...), f.stream.Place()
			if len(f.notes) > 0 {
				t.Errorf("notes: %q", f.notes)
			}
			f.stream.Close()
		}
		if !slices.Equal(got, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}) {
			t.Errorf("in batches of %d it read %v", size, got)
		}
	}
}

func TestTrainersShareAStream(t *testing.T) {
	path := filepath.Join(t.TempDir(), "clicks.csv")
	put(t, path, streamHeader+streamLines(0, 9))
	var got []int
	for rank := range 3 {
		f := follow(t, path, rank, 3, Place{})
		f.until(3)
		f.quiet()
		got = append(got, f.got...)
	}
	if !slices.Equal(got, []int{0, 3, 6, 1, 4, 7, 2, 5, 8}) {
		t.Errorf("three trainers read %v", got)
	}
}

// A log that is rotated away is read to its end, its last line too, then the new one.
func TestAStreamFollowsRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "clicks.csv")
	put(t, path, streamHeader+streamLines(0, 4))
	f := follow(t, path, 0, 1, Place{})
	f.until(4)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	put(t, path+".1", strings.TrimSuffix(streamLine(4), "\n"))
	f.quiet()
	put(t, path, streamHeader+streamLines(5, 8))
	f.until(8)
	f.wants(0, 8)
	f.told("was replaced after")
}

// A stream finds a file that was rotated while no trainer read it under its new name.
func TestAStreamGoesOnInARotatedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "clicks.csv")
	put(t, path, streamHeader+streamLines(0, 4))
	f := follow(t, path, 0, 1, Place{})
	f.until(4)
	put(t, path, streamLines(4, 6))
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	put(t, path, streamHeader+streamLines(6, 40)) // longer than the place is far
	g := follow(t, path, 0, 1, f.stream.Place())
	g.until(36)
	g.wants(4, 40)
	if len(g.notes) != 2 || !strings.Contains(g.notes[0], "was renamed to clicks.csv.1") ||
		!strings.Contains(g.notes[1], "was replaced after") {
		t.Errorf("notes: %q", g.notes)
	}
}

func TestAStreamBeginsATruncatedFileAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "clicks.csv")
	put(t, path, streamHeader+streamLines(0, 4))
	f := follow(t, path, 0, 1, Place{})
	f.until(4)
	if err := os.WriteFile(path, []byte(streamHeader+streamLines(4, 5)), 0o600); err != nil {
		t.Fatal(err)
	}
	f.until(5)
	f.wants(0, 5)
	f.told("was truncated after")
	// And while no trainer reads, to something longer.
	if err := os.WriteFile(path, []byte(streamHeader+streamLines(5, 20)), 0o600); err != nil {
		t.Fatal(err)
	}
	g := follow(t, path, 0, 1, f.stream.Place())
	g.until(15)
	g.wants(5, 20)
	g.told("is missing or has changed since it was read")
}

// A folder is read file by file, in the order of names; what has another name is none.
func TestAStreamFollowsAFolder(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	put(t, at(".hidden"), "x")
	put(t, at("2026-02.csv.tmp"), "x")
	f := follow(t, dir, 0, 1, Place{})
	f.quiet()
	put(t, at("2026-01.csv"), streamHeader+streamLines(0, 3)+strings.TrimSuffix(streamLine(3), "\n"))
	f.until(3)
	f.quiet()                                      // the last line has no end, and there may be more of it
	put(t, at("2026-03.csv"), "ad,click\nad5,1\n") // a header of its own
	f.until(5)
	if !slices.Equal(f.got, []int{0, 1, 2, 3, 5}) {
		t.Errorf("read %v", f.got)
	}
	place := f.stream.Place()
	if place.Name != "2026-03.csv" || place.Bytes != int64(len("ad,click\nad5,1\n")) || place.Lines != 1 {
		t.Errorf("place %+v", place)
	}
	put(t, at("2026-00.csv"), streamHeader+streamLines(90, 91)) // too late: a stream never goes back
	f.quiet()
	if err := os.Remove(at("2026-03.csv")); err != nil {
		t.Fatal(err)
	}
	put(t, at("2026-04.csv"), streamHeader+streamLines(6, 8))
	g := follow(t, dir, 0, 1, place)
	g.until(2)
	g.wants(6, 8)
	g.told("2026-03.csv is missing or has changed since it was read")
}

func TestAStreamOfStandardInputEnds(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	f := follow(t, Stdin, 0, 1, Place{})
	f.stream.file.file = r
	f.quiet()
	if _, err := w.WriteString(streamHeader + streamLines(0, 5)); err != nil {
		t.Fatal(err)
	}
	f.until(5)
	f.quiet()
	if _, err := w.WriteString(strings.TrimSuffix(streamLine(5), "\n")); err != nil {
		t.Fatal(err)
	}
	f.quiet()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f.until(6)
	if err := f.next(4); err != io.EOF {
		t.Errorf("at the end: %v, want io.EOF", err)
	}
	f.wants(0, 6)
	g := follow(t, Stdin, 0, 1, f.stream.Place())
	g.told("standard input cannot be read again")
}

func TestABadLineOfAStreamIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "clicks.csv")
	put(t, path, streamHeader+streamLines(0, 3))
	f := follow(t, path, 0, 1, Place{})
	f.until(3)
	put(t, path, "1,2,3\n")
	g := follow(t, path, 0, 1, f.stream.Place())
	for _, s := range []*follower{f, g} {
		if err := s.next(1); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument ||
			!strings.Contains(err.Error(), "clicks.csv:5: 3 columns, expected 2") {
			t.Errorf("%v, want one that names line 5", err)
		}
	}
	long := filepath.Join(t.TempDir(), "long.csv")
	put(t, long, streamHeader+strings.Repeat("x", maxLine+1))
	if err := follow(t, long, 0, 1, Place{}).next(1); err == nil || !strings.Contains(err.Error(), "a line of more than") {
		t.Errorf("a line without an end: %v", err)
	}
}

func TestWhatCannotBeFollowed(t *testing.T) {
	dir := t.TempDir()
	for path, says := range map[string]string{
		filepath.Join(dir, "a.gz"):      "compressed",
		filepath.Join(dir, "no", "a"):   "its folder does not exist",
		filepath.Join(os.DevNull):       "want a file",
		filepath.Join(os.DevNull, "no"): "",
	} {
		if _, err := OpenFollow(path, &Schema{}); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
