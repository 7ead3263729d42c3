package runs

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
)

const (
	headLine  = `{"run":{"version":1,"id":"r","job":"ctr","started":"2026-11-28T15:00:00Z"}}` + "\n"
	pointLine = `{"point":{"t":1,"step":1,"examples":10,"loss":0.5}}` + "\n"
	endLine   = `{"end":{"t":2,"state":"finished"}}` + "\n"
)

func TestDamagedLinesAreCounted(t *testing.T) {
	huge := `{"note":{"t":1,"text":"` + strings.Repeat("x", maxLine) + `"}}` + "\n"
	for _, tc := range []struct {
		name, text      string
		points, damaged int
		ended           bool
	}{
		{"whole", headLine + pointLine + endLine, 1, 0, true},
		{"a torn last line", headLine + pointLine + endLine[:10], 1, 1, false},
		{"zeros after a crash of the machine", headLine + pointLine + strings.Repeat("\x00", 500), 1, 1, false},
		{"a damaged line", headLine + "{\"point\":\n" + pointLine + endLine, 1, 1, true},
		{"a huge line", headLine + huge + pointLine + endLine, 1, 1, true},
		{"a huge line without an end", headLine + pointLine + huge[:maxLine+10], 1, 1, false},
		{"a line of a later binary", headLine + `{"gauge":{"t":1}}` + "\n" + pointLine, 1, 1, false},
		{"a second head", headLine + headLine + pointLine, 1, 1, false},
		{"a state that a file cannot have", headLine + `{"end":{"t":2,"state":"running"}}` + "\n", 0, 1, false},
		{"more points than a file has", headLine + strings.Repeat(pointLine, 3*maxPoints), 2 * maxPoints, maxPoints, false},
		{"steps that fall", headLine + strings.ReplaceAll(pointLine, `"step":1`, `"step":7`) + pointLine, 2, 0, false},
	} {
		p, err := parse(strings.NewReader(tc.text))
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if len(p.Points) != tc.points || p.Damaged != tc.damaged || (p.End != nil) != tc.ended {
			t.Errorf("%s: %d points, %d damaged lines, end %v; want %d, %d, %v", tc.name, len(p.Points), p.Damaged,
				p.End != nil, tc.points, tc.damaged, tc.ended)
		}
		for i := 1; i < len(p.Points); i++ {
			if p.Points[i].Step < p.Points[i-1].Step {
				t.Errorf("%s: steps fall", tc.name)
			}
		}
	}
}

func TestOtherFilesAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		code rowraft.Code
	}{
		"a newer version": {strings.Replace(headLine, `"version":1`, `"version":2`, 1), rowraft.CodeVersionTooNew},
		"a newer version with other fields": {`{"run":{"version":9,"job":{"name":"ctr"}}}` + "\n",
			rowraft.CodeVersionTooNew},
		"empty":           {"", rowraft.CodeCorrupt},
		"torn head":       {headLine[:20], rowraft.CodeCorrupt},
		"no head":         {pointLine, rowraft.CodeCorrupt},
		"damaged lines":   {headLine + strings.Repeat("\n", maxBroken+1), rowraft.CodeCorrupt},
		"version 0":       {strings.Replace(headLine, `"version":1`, `"version":0`, 1), rowraft.CodeCorrupt},
		"another program": {"label,c1\n1,a\n", rowraft.CodeCorrupt},
	} {
		if _, err := parse(strings.NewReader(tc.text)); rowraft.CodeOf(err) != tc.code {
			t.Errorf("%s: %v, want %v", name, err, tc.code)
		}
	}
}

// write makes a folder of a run with files.
func write(t *testing.T, dir, run string, files map[string]string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, run), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, run, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestListReadsEveryRun(t *testing.T) {
	dir := t.TempDir()
	later := strings.Replace(headLine, "15:00", "16:00", 1)
	write(t, dir, "b-2", map[string]string{"trainer-0.jsonl": headLine + endLine})
	write(t, dir, "a-1", map[string]string{"trainer-0.jsonl": later + endLine})
	write(t, dir, "[x]-3", map[string]string{"trainer-0.jsonl": strings.Replace(headLine, `"version":1`, `"version":7`, 1)})
	write(t, dir, "large", map[string]string{"trainer-0.jsonl": headLine + strings.Repeat("\n", maxFile)})
	write(t, dir, "notes", map[string]string{"readme.txt": "no run"})
	write(t, dir, ".", map[string]string{"trainer-0.jsonl": headLine})
	all, err := List(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range all {
		got = append(got, r.Name+" "+string(r.State()))
	}
	if want := "[x]-3 unreadable, large unreadable, b-2 finished, a-1 finished"; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if e := all[0].Error(); !strings.Contains(e, "format version 7") {
		t.Errorf("error %q, want the version", e)
	}
	if none, err := List(filepath.Join(dir, "absent")); err != nil || len(none) != 0 {
		t.Errorf("a folder that does not exist: %v, %v", none, err)
	}
}

func TestOpenFindsOneRun(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"ctr-1", "ctr-11", "ads-2"} {
		write(t, dir, name, map[string]string{"trainer-0.jsonl": headLine + endLine})
	}
	for name, want := range map[string]string{"ctr-1": "ctr-1", "ctr-11": "ctr-11", "ads": "ads-2"} {
		if r, err := Open(dir, name); err != nil || r.Name != want {
			t.Errorf("Open(%q): %v, %v; want %s", name, r, err, want)
		}
	}
	for name, want := range map[string]string{"ctr": "2 runs that begin", "no": "no run", "": "no run", "..": "no run"} {
		if _, err := Open(dir, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Open(%q): %v, want %q", name, err, want)
		}
	}
}

func TestAFileOfAnotherHostGoesByItsAge(t *testing.T) {
	dir := t.TempDir()
	elsewhere := strings.Replace(headLine, `"job"`, `"host":"another host","job"`, 1)
	write(t, dir, "r", map[string]string{"trainer-0.jsonl": elsewhere})
	if got := open(t, dir, "r").State(); got != Running {
		t.Errorf("a file that has just changed: %s, want running", got)
	}
	path := filepath.Join(dir, "r", "trainer-0.jsonl")
	if st, err := os.Stat(path); err != nil {
		t.Fatal(err)
	} else if old := st.ModTime().Add(-2 * staleAfter); os.Chtimes(path, old, old) != nil {
		t.Fatal("the time of a file cannot be changed")
	}
	if got := open(t, dir, "r").State(); got != Killed {
		t.Errorf("an old file: %s, want killed", got)
	}
}

func TestRemoveLeavesOtherFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a", map[string]string{"trainer-0.jsonl": headLine + endLine, "page.html": "x"})
	write(t, dir, "b", map[string]string{"trainer-0.jsonl": headLine + endLine, "weights.npy": "x"})
	for _, name := range []string{"a", "b"} {
		if err := open(t, dir, name).Remove(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "a")); !os.IsNotExist(err) {
		t.Errorf("the folder of run a: %v, want none", err)
	}
	left, err := os.ReadDir(filepath.Join(dir, "b"))
	if err != nil || len(left) != 1 || left[0].Name() != "weights.npy" {
		t.Errorf("left in b: %v, %v", left, err)
	}
}

// FuzzRecord: any bytes are read without a panic, and can be compared and drawn.
func FuzzRecord(f *testing.F) {
	golden, err := os.ReadFile("testdata/record.jsonl")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden)
	f.Add([]byte(headLine + pointLine + endLine))
	f.Add([]byte(headLine + `{"point":{"t":1e308,"step":-9223372036854775808,"loss":null}}` + "\n" + pointLine))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := parse(bytes.NewReader(text))
		if err != nil {
			return
		}
		p.State = Killed
		r := &Run{Name: "r", Dir: "r", Processes: []*Process{p}}
		Compare([]*Run{r, r})
		for _, s := range r.Curve(curvePoints) {
			if s.Seconds < 0 {
				t.Errorf("a sample at %v s", s.Seconds)
			}
		}
		var out bytes.Buffer
		if err := WritePage(&out, []*Run{r}, p.Head.Started); err != nil {
			t.Error(err)
		}
		if strings.Contains(out.String(), "NaN") && !bytes.Contains(text, []byte("NaN")) {
			t.Error("the page has a NaN")
		}
	})
}
