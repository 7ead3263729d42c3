package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rowraft/rowraft/internal/localcluster"
)

// jobView is what `rowraft job describe -o json` says of a job.
type jobView struct {
	Run        string `json:"run"`
	State      string `json:"state"`
	Training   int    `json:"training"`
	Generation uint64 `json:"generation"`
	Data       *struct {
		Epoch   uint64   `json:"epoch"`
		Given   uint64   `json:"given"`
		Open    []uint64 `json:"open"`
		Back    []uint64 `json:"back"`
		AtLeast uint64   `json:"read_again_at_least"`
		AtMost  uint64   `json:"read_again_at_most"`
	} `json:"data"`
	Members []struct {
		Rank        int     `json:"rank"`
		Worker      string  `json:"worker"`
		State       string  `json:"state"`
		Reason      string  `json:"reason"`
		Incarnation uint64  `json:"incarnation"`
		Step        *uint64 `json:"step"`
	} `json:"members"`
}

// jobUntil describes a job until it is as wanted.
func (c *cluster) jobUntil(name, what string, ok func(jobView) bool) jobView {
	c.t.Helper()
	var v struct{ Job jobView }
	err := poll(deadline(c.t, patience), func() error {
		out, errout, code := c.rowraft(c.t.Context(), "job", "describe", name, "-o", "json")
		if code != 0 {
			return fmt.Errorf("exit code %d: %s", code, errout) // nobody has entered it yet
		}
		v.Job = jobView{}
		if err := json.Unmarshal([]byte(out), &v); err != nil || !ok(v.Job) {
			return fmt.Errorf("job %s is %+v, %v", name, v.Job, err)
		}
		return nil
	})
	if err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
	return v.Job
}

// member returns the state and step of a worker, "" if it has none.
func (v jobView) member(worker string) (state string, step uint64) {
	for _, m := range v.Members {
		if m.Worker == worker {
			if m.Step != nil {
				step = *m.Step
			}
			return m.State, step
		}
	}
	return "", 0
}

// rank of a worker, −1 if it has none.
func (v jobView) rank(worker string) int {
	for _, m := range v.Members {
		if m.Worker == worker {
			return m.Rank
		}
	}
	return -1
}

func (v jobView) incarnation(worker string) uint64 {
	for _, m := range v.Members {
		if m.Worker == worker {
			return m.Incarnation
		}
	}
	return 0
}

// writeJob writes a job's file, and data with a key for each of so many examples, into dir.
func writeJob(t *testing.T, dir string, examples int, job string) {
	t.Helper()
	var csv strings.Builder
	csv.WriteString("label,x,id\n")
	for i := range examples {
		fmt.Fprintf(&csv, "%d,%d,e%d\n", i%3/2, i%7, i)
	}
	for name, text := range map[string]string{
		"data.csv":    csv.String(),
		"schema.yaml": "format: csv\nlabel: {column: label}\ndense:\n  - {column: x}\ncategorical:\n  - {column: id}\n",
		"job.yaml":    job,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// hasRows waits for a table to have so many rows: servers tell of theirs now and then.
func (c *cluster) hasRows(table string, want uint64) {
	c.t.Helper()
	err := poll(deadline(c.t, patience), func() error {
		var v struct {
			Table struct {
				Rows uint64 `json:"rows"`
			} `json:"table"`
		}
		err := json.Unmarshal([]byte(c.must("table", "describe", table, "-o", "json")), &v)
		if err == nil && v.Table.Rows != want {
			err = fmt.Errorf("%d rows in %s, want %d", v.Table.Rows, table, want)
		}
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

// TestWorkersComeAndGo: a worker is killed inside its training, the scheduler's leader
// with it; another one joins late, becomes a zombie, and is refused since the first has returned in its place.
// The data has an example per key, and in the end every key has a row: each example of
// the epoch was trained.
func TestWorkersComeAndGo(t *testing.T) {
	beforeRelease(t)
	needBinaries(t)
	c := start(t, localcluster.Options{})
	dir := t.TempDir()
	const examples = 20000
	writeJob(t, dir, examples, fmt.Sprintf(`job: ctr
trainers: 2
lease: 15s
batch: 16
steps: 1000000000
evaluate: false
data: {file: %s/data.csv, schema: %s/schema.yaml, held: 0}
model: {dim: 4, bottom: [4], top: [4]}
`, dir, dir))
	work := func(worker string, args ...string) *running {
		return spawn(t, "rowraft-trainer", append([]string{"train", "--config", filepath.Join(dir, "job.yaml"), "--worker", worker,
			"--endpoints", strings.Join(c.Endpoints(), ","), "--insecure", "--accelerator", "go", "--progress", "none"}, args...)...)
	}
	a, b := work("a"), work("b")
	trains := func(worker string) func(jobView) bool {
		return func(v jobView) bool {
			state, step := v.member(worker)
			return state == "training" && step >= 5
		}
	}
	is := func(worker, want string) func(jobView) bool {
		return func(v jobView) bool { state, _ := v.member(worker); return state == want }
	}
	c.jobUntil("ctr", "a trains", trains("a"))
	before := c.jobUntil("ctr", "b trains", trains("b"))
	for what, args := range map[string][]string{"all of its 2 workers": nil, "batch is 16 in the job, and 8 at the worker": {"--batch", "8"}} {
		p := work("c", args...)
		if code := p.code(t, patience); code != 2 || !strings.Contains(p.stderr.String(), what) {
			t.Errorf("exit code %d, want 2 and %q:\n%s", code, what, &p.stderr)
		}
	}

	a.kill()
	leader := c.metaLeader()
	c.killAll([]*localcluster.Server{leader})
	c.jobUntil("ctr", "a is lost, and b trains on under another scheduler", func(v jobView) bool {
		return is("a", "lost")(v) && is("b", "training")(v) && v.Generation > before.Generation
	})
	c.restartAll([]*localcluster.Server{leader})

	late := work("c")
	c.jobUntil("ctr", "c trains", trains("c"))
	if err := late.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	c.jobUntil("ctr", "c is lost", is("c", "lost"))
	a = work("a")
	c.jobUntil("ctr", "a is back", trains("a"))
	if err := late.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if code := late.code(t, patience); code == 0 || strings.Contains(late.stderr.String(), "enters it again") {
		t.Errorf("the zombie ends with code %d:\n%s", code, &late.stderr)
	}
	t.Logf("the zombie is told: %s", strings.TrimSpace(late.stderr.String()))
	v := c.jobUntil("ctr", "an epoch is over", func(v jobView) bool {
		ofLast := slices.ContainsFunc(v.Data.Open, func(part uint64) bool { return part >= v.Data.Given })
		return v.Data.Epoch > 0 && len(v.Data.Back) == 0 && !ofLast
	})
	if v.Data.AtMost == 0 || v.Data.AtLeast > v.Data.AtMost {
		t.Errorf("after two deaths %d to %d examples were read again", v.Data.AtLeast, v.Data.AtMost)
	}
	t.Logf("epoch %d, generation %d; %d to %d examples read again", v.Data.Epoch, v.Generation, v.Data.AtLeast, v.Data.AtMost)
	if out := c.must("job", "stop", "ctr"); !strings.Contains(out, "job ctr: stopped") {
		t.Errorf("stop says %q", out)
	}
	for _, p := range []*running{a, b} {
		if code := p.code(t, patience); code != 0 {
			t.Errorf("exit code %d:\n%s%s", code, &p.stdout, &p.stderr)
		}
	}
	c.hasRows("ctr.embeddings", examples)
	c.sameDigests()
}
