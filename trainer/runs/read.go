package runs

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/rowraft/rowraft"
)

// Process is the record of one process of a run.
type Process struct {
	Head   Head
	Points []Point // ascending by step
	Held   []Held
	Notes  []Note
	End    *End // nil: the process runs, or was killed
	State  State

	File    string // base name
	Bytes   int64
	Damaged int // lines that could not be read

	changed time.Time
}

// last returns the time of the last thing that the process recorded.
func (p *Process) last() time.Time {
	t := 0.0
	if n := len(p.Points); n > 0 {
		t = float64(p.Points[n-1].Seconds)
	}
	if p.End != nil && !(float64(p.End.Seconds) < t) {
		t = float64(p.End.Seconds)
	}
	return p.Head.Started.Add(duration(t))
}

// duration returns a time span that was read from a file; 0 if it is no number of seconds below ten years.
func duration(seconds float64) time.Duration {
	if !(seconds >= 0 && seconds < 10*365*24*3600) {
		return 0
	}
	return time.Duration(seconds * float64(time.Second))
}

// readProcess reads the file of a process.
//
// Errors: CodeVersionTooNew; CodeCorrupt for a file without a head, and for one that is larger than any record.
func readProcess(path string) (*Process, error) {
	for {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		p, again, err := readOpen(f, path)
		f.Close()
		if !again {
			return p, err
		}
	}
}

// readOpen reads the file of a process that is open, and reports whether another file has taken its place meanwhile.
func readOpen(f *os.File, path string) (p *Process, again bool, err error) {
	st, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	if st.Size() > maxFile {
		return nil, false, rowraft.Errorf(rowraft.CodeCorrupt, "%s has %s, more than any record (%s)", path,
			humanize.IBytes(uint64(st.Size())), humanize.IBytes(maxFile))
	}
	if p, err = parse(io.LimitReader(f, maxFile)); err != nil {
		return nil, false, fmt.Errorf("%s: %w", path, err)
	}
	p.File, p.Bytes, p.changed = filepath.Base(path), st.Size(), st.ModTime()
	if p.End != nil {
		p.State = p.End.State
		return p, false, nil
	}
	p.State = Running
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return p, false, nil
	case err == nil && p.Head.Host == thisHost():
		// The process does not hold the lock: it has ended, or it has written another file in the place of this one, or
		// its end since the file was read.
		now, err := os.Stat(path)
		if err == nil && (!os.SameFile(st, now) || now.Size() != st.Size()) {
			return nil, true, nil
		}
		p.State = Killed
	case time.Since(p.changed) > staleAfter:
		p.State = Killed
	}
	return p, false, nil
}

func thisHost() string {
	host, _ := os.Hostname()
	return host
}

// parse reads the lines of a file. It ignores lines that are damaged or longer than maxLine, and a last line without an
// end, and counts them.
func parse(r io.Reader) (*Process, error) {
	var p Process
	lines := bufio.NewReaderSize(r, 64<<10)
	for first := true; ; first = false {
		text, err := readLine(lines)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		var l line
		damaged := text == nil || json.Unmarshal(text, &l) != nil
		if first {
			if err := checkHead(text, &l, damaged); err != nil {
				return nil, err
			}
			p.Head = *l.Head
			continue
		}
		if damaged || !p.take(&l) {
			if p.Damaged++; p.Damaged > maxBroken {
				return nil, rowraft.Errorf(rowraft.CodeCorrupt, "more than %d lines are damaged", maxBroken)
			}
		}
	}
	if p.Head.Version == 0 {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "the file is empty: it is not the record of a run")
	}
	slices.SortStableFunc(p.Points, func(a, b Point) int { return cmp.Compare(a.Step, b.Step) })
	return &p, nil
}

// checkHead checks the first line of a file.
func checkHead(text []byte, l *line, damaged bool) error {
	if damaged { // a newer version may have fields of another type
		var v struct {
			Head struct {
				Version int `json:"version"`
			} `json:"run"`
		}
		if text != nil && json.Unmarshal(text, &v) == nil && v.Head.Version > Version {
			l.Head = &Head{Version: v.Head.Version}
		}
	}
	switch {
	case l.Head == nil || l.Head.Version < 1:
		return rowraft.Errorf(rowraft.CodeCorrupt, "the first line is not the head of a run's record")
	case l.Head.Version > Version:
		return rowraft.Errorf(rowraft.CodeVersionTooNew, "the record has format version %d, and this binary reads %d",
			l.Head.Version, Version)
	}
	return nil
}

// take adds a line, and reports whether it is one that a file may have there.
func (p *Process) take(l *line) bool {
	switch {
	case l.Head != nil:
		return false
	case l.Point != nil && len(p.Points) < 2*maxPoints:
		p.Points = append(p.Points, *l.Point)
	case l.Held != nil && len(p.Held) < 2*maxHeld:
		p.Held = append(p.Held, *l.Held)
	case l.Note != nil && len(p.Notes) < 2*maxNotes:
		p.Notes = append(p.Notes, Note{l.Note.Seconds, cut(l.Note.Text)})
	case l.End != nil && slices.Contains([]State{Finished, Failed, Interrupted}, l.End.State):
		p.End = l.End
	default: // a line of a kind that a later binary has added, or too many
		return false
	}
	return true
}

// readLine returns the next line; nil if it is longer than maxLine or has no end. The error is io.EOF after the last.
func readLine(r *bufio.Reader) (text []byte, err error) {
	long := false
	for {
		part, err := r.ReadSlice('\n')
		if len(text)+len(part) > maxLine {
			long, text = true, nil
		}
		if !long {
			text = append(text, part...)
		}
		switch {
		case err == bufio.ErrBufferFull:
			continue
		case err == io.EOF && len(text) == 0 && !long:
			return nil, io.EOF
		case err == io.EOF: // torn
			return nil, nil
		case err != nil || long:
			return nil, err
		}
		return bytes.TrimSuffix(text, []byte("\n")), nil
	}
}

// Run is a run with all of its processes that can be read.
type Run struct {
	Name      string
	Dir       string     // folder of the run
	Processes []*Process // by rank, then by start
	Errors    []error    // one for each file that cannot be read
}

// List reads the runs of a folder, the newest last. A folder that does not exist has none.
func List(dir string) ([]*Run, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []*Run
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		r, err := read(dir, e.Name())
		if err != nil {
			return nil, err
		}
		if len(r.Processes)+len(r.Errors) > 0 {
			all = append(all, r)
		}
	}
	slices.SortStableFunc(all, func(a, b *Run) int { return a.Started().Compare(b.Started()) })
	return all, nil
}

// Open reads the run of a folder whose name is given, or begins with the given text. Its files may all be unreadable.
//
// Errors: CodeInvalidArgument if there is none, or several.
func Open(dir, name string) (*Run, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && name != "" && strings.HasPrefix(e.Name(), name) {
			names = append(names, e.Name())
		}
	}
	if slices.Contains(names, name) {
		names = []string{name}
	}
	switch len(names) {
	case 0:
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "%s has no run %q", dir, name)
	case 1:
	default:
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "%s has %d runs that begin with %q: %s", dir, len(names),
			name, strings.Join(names, ", "))
	}
	r, err := read(dir, names[0])
	if err == nil && len(r.Processes)+len(r.Errors) == 0 {
		err = rowraft.Errorf(rowraft.CodeInvalidArgument, "%s is not a run: it has no record", r.Dir)
	}
	return r, err
}

// read reads the files of a run.
func read(dir, name string) (*Run, error) {
	r := &Run{Name: name, Dir: filepath.Join(dir, name)}
	files, err := filepath.Glob(filepath.Join(glob(r.Dir), "trainer-*.jsonl"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		p, err := readProcess(file)
		if err != nil {
			r.Errors = append(r.Errors, err)
			continue
		}
		r.Processes = append(r.Processes, p)
	}
	slices.SortStableFunc(r.Processes, func(a, b *Process) int {
		if a.Head.Rank != b.Head.Rank {
			return a.Head.Rank - b.Head.Rank
		}
		return a.Head.Started.Compare(b.Head.Started)
	})
	return r, nil
}

// glob returns the pattern of a path.
func glob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
