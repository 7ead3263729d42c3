package runs

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/report"
)

// helper makes the test binary a process that records a run in this folder and waits to be killed.
const helper = "RUNS_TEST_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helper); dir != "" {
		r, err := Begin(dir, Head{Run: "killed", Job: "ctr"}, nil)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		r.Observe(stepEvent(r, 1))
		fmt.Println("ready")
		select {}
	}
	os.Exit(m.Run())
}

// stepEvent is the event of a step, one second after the one before.
func stepEvent(r *Recorder, step int64) report.Event {
	nan := report.Number(math.NaN())
	return report.Event{Event: report.EventStep, Time: r.head.Started.Add(time.Duration(step) * time.Second), Step: step,
		Examples: 100 * step, Loss: report.Number(1 / float64(step+1)), AUC: 0.5, Accuracy: nan, StalenessSteps: 2,
		WaitingSeconds: report.Number(step) / 4}
}

func startEvent(r *Recorder) report.Event {
	e := stepEvent(r, 0)
	e.Event, e.Loss = report.EventStart, report.Number(math.NaN())
	return e
}

// testResult is a result with a score.
func testResult(auc float64) *report.Result {
	nan := report.Number(math.NaN())
	return &report.Result{Job: "ctr", Data: "clicks.csv", Steps: 9, HeldExamples: 10, AUC: report.Number(auc),
		LogLoss: 0.4, Accuracy: nan, RMSE: nan, BestAUC: nan, BestLogLoss: nan, TrainingLoss: 0.3, TrainingAUC: 0.7}
}

func begin(t *testing.T, dir string, h Head) *Recorder {
	t.Helper()
	r, err := Begin(dir, h, func(err error) { t.Errorf("the record is lost: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func open(t *testing.T, dir, name string) *Run {
	t.Helper()
	r, err := Open(dir, name)
	if err != nil || len(r.Errors) > 0 {
		t.Fatalf("open %s: %v %v", name, err, r)
	}
	return r
}

func TestARecordIsReadAsItWasWritten(t *testing.T) {
	dir := t.TempDir()
	r := begin(t, dir, Head{Job: "ctr", Trainers: 1, Set: map[string]string{"model.dim": "8"},
		Settings: map[string]any{"model": map[string]any{"dim": 8}}, Fingerprint: "abc"})
	r.Observe(startEvent(r))
	for step := int64(1); step <= 9; step++ {
		r.Observe(stepEvent(r, step))
	}
	if got := open(t, dir, r.Run()).State(); got != Running {
		t.Errorf("state %s while the process writes, want running", got)
	}
	held := stepEvent(r, 9)
	held.Event, held.Held = report.EventValidation, &report.Held{Step: 9, Examples: 10, AUC: 0.7, LogLoss: 0.5,
		Accuracy: report.Number(math.NaN())}
	r.Observe(held)
	note := stepEvent(r, 9)
	note.Event, note.Message = report.EventNote, strings.Repeat("long ", 1000)
	r.Observe(note)
	r.End(testResult(0.75), nil)
	r.End(nil, errors.New("again")) // nothing
	r.Observe(stepEvent(r, 10))     // nothing

	got := open(t, dir, r.Run())
	p := got.Processes[0]
	if len(p.Points) != 10 || p.Points[9].Step != 9 || p.Points[9].Seconds != 9 || p.Damaged != 0 {
		t.Errorf("%d points, %d damaged lines, want 10 and 0: %+v", len(p.Points), p.Damaged, p.Points)
	}
	if !math.IsNaN(float64(p.Points[0].Loss)) || p.Points[9].Loss != 0.1 {
		t.Errorf("losses %v and %v, want NaN at the start and 0.1", p.Points[0].Loss, p.Points[9].Loss)
	}
	if len(p.Held) != 1 || p.Held[0].AUC != 0.7 || p.Held[0].Step != 9 {
		t.Errorf("held-out scores %+v", p.Held)
	}
	if len(p.Notes) != 1 || len(p.Notes[0].Text) > maxText+10 || p.Bytes > 5*maxText {
		t.Errorf("%d notes in a file of %d bytes, want one that was cut", len(p.Notes), p.Bytes)
	}
	if s := got.Score(); got.State() != Finished || s.Name != "AUC" || s.Value != 0.75 || s.Kind != "" {
		t.Errorf("state %s, score %+v; want finished with AUC 0.75", got.State(), s)
	}
	if h := got.Head(); h.Job != "ctr" || h.Fingerprint != "abc" || got.Set() != "model.dim=8" || h.PID != os.Getpid() {
		t.Errorf("head %+v", h)
	}
	if b, n := got.Totals(); b != 9 || n != 900 {
		t.Errorf("%d batches, %d examples, want 9 and 900", b, n)
	}
}

func TestStates(t *testing.T) {
	for _, tc := range []struct {
		name    string
		result  *report.Result
		failure error
		want    State
	}{
		{"finished", testResult(0.5), nil, Finished},
		{"failed", testResult(0.5), errors.New("the disk is full"), Failed},
		{"stopped early", &report.Result{Interrupted: true, Stopped: true, StopReason: "no score was better"}, nil, Finished},
		{"interrupted", &report.Result{Interrupted: true}, nil, Interrupted},
	} {
		dir := t.TempDir()
		r := begin(t, dir, Head{Job: "ctr"})
		r.End(tc.result, tc.failure)
		got := open(t, dir, "ctr-")
		if got.State() != tc.want || tc.failure != nil && got.Error() != tc.failure.Error() {
			t.Errorf("%s: state %s, error %q", tc.name, got.State(), got.Error())
		}
	}
}

func TestAKilledProcessIsKnown(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helper+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make([]byte, 6)
	if _, err := out.Read(ready); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-2 * staleAfter) // the lock counts, not the time
	if err := os.Chtimes(filepath.Join(dir, "killed", fileName(0, 1)), old, old); err != nil {
		t.Fatal(err)
	}
	if got := open(t, dir, "killed").State(); got != Running {
		t.Errorf("state %s while the process runs, want running", got)
	}
	if err := open(t, dir, "killed").Remove(); rowraft.CodeOf(err) != rowraft.CodePrecondition {
		t.Errorf("a running run is removed: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got := open(t, dir, "killed").State(); got != Killed {
		t.Errorf("state %s after SIGKILL, want killed", got)
	}
	again := begin(t, dir, Head{Run: "killed", Job: "ctr"}) // as a worker that is started again
	defer again.End(nil, nil)
	if r := open(t, dir, "killed"); r.State() != Running || len(r.Processes) != 2 {
		t.Errorf("state %s with %d processes after a restart, want running with 2", r.State(), len(r.Processes))
	}
}

func TestARecordIsBounded(t *testing.T) {
	dir := t.TempDir()
	r := begin(t, dir, Head{Job: "ctr"})
	r.Observe(startEvent(r))
	const steps = 50_000
	for step := int64(1); step <= steps; step++ {
		e := stepEvent(r, step)
		r.Observe(e)
		if step%10 == 0 {
			e.Event, e.Held = report.EventValidation, &report.Held{Step: step, AUC: 0.5}
			r.Observe(e)
			e.Event, e.Message = report.EventNote, "note"
			r.Observe(e)
		}
	}
	done := stepEvent(r, steps)
	done.Event = report.EventDone
	r.Observe(done)
	r.End(testResult(0.5), nil)
	p := open(t, dir, r.Run()).Processes[0]
	if n := len(p.Points); n < maxPoints/4 || n >= maxPoints {
		t.Errorf("%d points, want fewer than %d", n, maxPoints)
	}
	if n := len(p.Held); n < maxHeld/4 || n >= maxHeld {
		t.Errorf("%d held-out scores, want fewer than %d", n, maxHeld)
	}
	if len(p.Notes) != maxNotes || p.Bytes > 1<<20 || p.Damaged != 0 {
		t.Errorf("%d notes, %d bytes, %d damaged lines", len(p.Notes), p.Bytes, p.Damaged)
	}
	if p.Points[0].Step != 0 || p.Points[len(p.Points)-1].Step != steps {
		t.Errorf("points from step %d to %d, want 0 to %d", p.Points[0].Step, p.Points[len(p.Points)-1].Step, steps)
	}
	for i := 1; i < len(p.Points); i++ {
		if gap := p.Points[i].Step - p.Points[i-1].Step; gap > 4*steps/int64(len(p.Points)) {
			t.Errorf("no point between steps %d and %d", p.Points[i-1].Step, p.Points[i].Step)
		}
	}
	if parts, _ := filepath.Glob(filepath.Join(dir, r.Run(), "*.tmp")); len(parts) > 0 {
		t.Errorf("left behind: %v", parts)
	}
}

func TestALostFolderEndsTheRecordOnce(t *testing.T) {
	dir := t.TempDir()
	lost := make(chan error, 10)
	r, err := Begin(dir, Head{Job: "ctr"}, func(err error) { lost <- err })
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for step := int64(1); step < 3*maxPoints; step++ { // points are thinned out: the file is written again
		r.Observe(stepEvent(r, step))
	}
	r.End(nil, nil)
	if n := len(lost); n != 1 {
		t.Errorf("%d errors, want 1", n)
	}
}

func TestNamesOfRunsAreNamesOfFolders(t *testing.T) {
	for job, want := range map[string]string{
		"ctr": "ctr-1", "../../etc": "_.._etc-1", "a/b c": "a_b_c-1", "<script>": "_script_-1", "..": "-1",
		strings.Repeat("é", 200): strings.Repeat("_", 80) + "-1",
	} {
		if got := Name(job, "1"); got != want {
			t.Errorf("Name(%q) = %q, want %q", job, got, want)
		}
	}
}

// The file of testdata was made by hand from docs/formats/run-record.md.
func TestGoldenRecord(t *testing.T) {
	text, err := os.ReadFile("testdata/record.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	p, err := parse(bytes.NewReader(text))
	if err != nil || p.Damaged != 0 {
		t.Fatalf("%v, %d damaged lines", err, p.Damaged)
	}
	if p.Head.Job != "ctr" || p.Head.Rank != 1 || p.Head.Set["embeddings.lr"] != "0.05" ||
		!p.Head.Started.Equal(time.Date(2026, 11, 28, 15, 0, 0, 0, time.UTC)) {
		t.Errorf("head %+v", p.Head)
	}
	if len(p.Points) != 2 || p.Points[1] != (Point{Seconds: 1.5, Step: 2, Examples: 1024, Loss: 0.69, AUC: 0.5,
		Accuracy: 0.25, Stale: 3, Waiting: 0.5}) {
		t.Errorf("points %+v", p.Points)
	}
	if len(p.Held) != 1 || p.Held[0].LogLoss != 0.6 || !p.Held[0].Best || len(p.Notes) != 1 ||
		p.End == nil || p.End.State != Failed || p.End.Error != "no leader" {
		t.Errorf("held %+v, notes %+v, end %+v", p.Held, p.Notes, p.End)
	}
}

// BenchmarkObserve is what the record costs a step of a long run.
func BenchmarkObserve(b *testing.B) {
	r, err := Begin(b.TempDir(), Head{Job: "ctr"}, nil)
	if err != nil {
		b.Fatal(err)
	}
	e := stepEvent(r, 1)
	b.ReportAllocs()
	for b.Loop() {
		e.Step++
		r.Observe(e)
	}
	r.End(nil, nil)
}
