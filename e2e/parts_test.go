package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rowraft/rowraft/internal/localcluster"
)

// TestPartsInStep: workers in mode sync read a file in parts. Two are killed inside their parts, one
// is stopped for longer than its lease and takes part again by itself, one joins in the place of a dead one. All
// that while one has half a second to do for each step, so that the job is not done before; then it
// leaves, at a signal. The lease is long, or the others are done while that one stands still. In the end each example has its row, how many were read again is known exactly, and the other one that was
// killed learns that the job is done.
func TestPartsInStep(t *testing.T) {
	beforeRelease(t)
	needBinaries(t)
	c := start(t, localcluster.Options{})
	dir := t.TempDir()
	const examples = 12000
	writeJob(t, dir, examples, fmt.Sprintf(`job: read
mode: sync
trainers: 4
lease: 20s
batch: 8
evaluate: false
data: {file: %s/data.csv, schema: %s/schema.yaml, held: 0}
model: {dim: 4, sleep: 1ms}
`, dir, dir))
	job, slow := filepath.Join(dir, "job.yaml"), filepath.Join(dir, "slow.yaml")
	if err := os.WriteFile(slow, bytes.Replace(mustRead(t, job), []byte("sleep: 1ms"), []byte("sleep: 500ms"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	work := func(worker, config string) *running {
		return spawn(t, "rowraft-trainer", "train", "--config", config, "--worker", worker,
			"--endpoints", strings.Join(c.Endpoints(), ","), "--insecure", "--accelerator", "go", "--progress", "none")
	}
	trains := func(worker string, steps uint64) func(jobView) bool {
		return func(v jobView) bool { state, step := v.member(worker); return state == "training" && step >= steps }
	}
	lost := func(worker string) func(jobView) bool {
		return func(v jobView) bool { state, _ := v.member(worker); return state == "lost" }
	}
	brake, x, y, sleeps := work("brake", slow), work("x", job), work("y", job), work("sleeps", job)
	c.jobUntil("read", "all train", func(v jobView) bool {
		return trains("brake", 3)(v) && trains("x", 3)(v) && trains("y", 3)(v) && trains("sleeps", 3)(v)
	})
	x.kill()
	y.kill()
	c.jobUntil("read", "the killed workers are lost", func(v jobView) bool { return lost("x")(v) && lost("y")(v) })
	told := func(when string) {
		v := c.jobUntil("read", "", func(jobView) bool { return true })
		t.Logf("%s: %d to %d examples read again, generation %d, %+v", when, v.Data.AtLeast, v.Data.AtMost, v.Generation, v.Members)
	}
	told("two are lost")
	joins := work("joins", job) // in the place of a dead one: of the stopped one there is none yet
	c.jobUntil("read", "another one has joined", trains("joins", 0))
	signal(t, sleeps, syscall.SIGSTOP)
	c.jobUntil("read", "the stopped worker is lost", lost("sleeps"))
	told("three are lost")
	signal(t, sleeps, syscall.SIGCONT)
	c.jobUntil("read", "the stopped worker is back, and another one has joined", func(v jobView) bool { return trains("sleeps", 1)(v) && trains("joins", 1)(v) })
	told("two are there in their place")
	signal(t, brake, syscall.SIGTERM)
	for worker, p := range map[string]*running{"brake": brake, "sleeps": sleeps, "joins": joins} {
		want := 0
		if p == brake {
			want = 130
		}
		if code := p.code(t, patience); code != want {
			t.Fatalf("worker %s: exit code %d, want %d:\n%s%s", worker, code, want, &p.stdout, &p.stderr)
		}
	}
	if text := sleeps.stderr.String(); !strings.Contains(text, "enters it again") {
		t.Errorf("the worker that was stopped says\n%s", text)
	}
	v := c.jobUntil("read", "it is done", func(v jobView) bool { return v.State == "done" })
	entered, left := uint64(0), uint64(0)
	for _, m := range v.Members {
		if entered = max(entered, m.Incarnation); m.State == "ended" || m.State == "stopped" {
			left++
		}
	}
	lostAll := entered - left // three, and whom a busy machine has kept silent for a lease
	if v.Data.AtLeast != v.Data.AtMost || v.Data.AtMost > lostAll*8 {
		t.Errorf("after %d were lost %d to %d examples were read again, want the same number, and a batch of each: %+v", lostAll, v.Data.AtLeast, v.Data.AtMost, v.Members)
	}
	told("it is done")
	c.hasRows("read.embeddings", examples) // one for each example
	dead := "x"                            // whose rank nobody has taken
	if !lost(dead)(v) {
		dead = "y"
	}
	if p := work(dead, job); p.code(t, patience) != 0 || !strings.Contains(p.stderr.String(), "job read is done: worker "+dead+" was lost") {
		t.Errorf("who was killed and comes when all is done says\n%s%s", &p.stdout, &p.stderr)
	}
	c.sameDigests()
}
