package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/trainer/report"
)

// trainers are processes of one job.
type trainers struct {
	c      *cluster
	dir    string
	config string
	n      int
	procs  []*running
}

func (tr *trainers) start(args ...string) {
	tr.procs = nil
	for rank := range tr.n {
		progress := tr.progress(rank)
		_ = os.Remove(progress)
		tr.procs = append(tr.procs, spawn(tr.c.t, "rowraft-trainer",
			append([]string{"train", "--config", tr.config, "--rank", fmt.Sprint(rank),
				"--endpoints", strings.Join(tr.c.Endpoints(), ","), "--insecure", "--device", "cpu", "--progress", "json",
				"--progress-file", progress}, args...)...))
	}
}

func (tr *trainers) progress(rank int) string {
	return filepath.Join(tr.dir, fmt.Sprintf("progress-%d", rank))
}

// last is the last event of a trainer; every event has all counters.
func (tr *trainers) last(rank int) (e report.Event, err error) {
	f, err := os.Open(tr.progress(rank))
	if err != nil {
		return e, err
	}
	defer f.Close()
	const tail = 1 << 14 // some events
	if end, err := f.Seek(0, io.SeekEnd); err != nil {
		return e, err
	} else if _, err := f.Seek(max(end-tail, 0), io.SeekStart); err != nil {
		return e, err
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return e, err
	}
	lines := bytes.Split(b, []byte("\n"))
	if len(lines) < 2 {
		return e, fmt.Errorf("trainer %d has said nothing", rank)
	}
	return e, json.Unmarshal(lines[len(lines)-2], &e) // behind it is what is being written
}

// reached waits until every trainer has made so many steps.
func (tr *trainers) reached(step int64) {
	tr.c.t.Helper()
	err := poll(deadline(tr.c.t, patience), func() error {
		for rank := range tr.n {
			if e, err := tr.last(rank); err != nil || e.Step < step {
				return fmt.Errorf("trainer %d is at step %d, want %d: %v", rank, e.Step, step, err)
			}
		}
		return nil
	})
	if err != nil {
		tr.c.t.Fatal(err)
	}
}

// most is the step that the trainer who is farthest has made.
func (tr *trainers) most() (step int64) {
	tr.c.t.Helper()
	for rank := range tr.n {
		e, err := tr.last(rank)
		if err != nil {
			tr.c.t.Fatal(err)
		}
		step = max(step, e.Step)
	}
	return step
}

// farther waits until every trainer has made more steps than any of them has now.
func (tr *trainers) farther(steps int64) {
	tr.c.t.Helper()
	tr.reached(tr.most() + steps)
}

func (tr *trainers) ended() {
	tr.c.t.Helper()
	for _, p := range tr.procs {
		if code := p.code(tr.c.t, patience); code != 0 {
			tr.c.t.Fatalf("exit code %d:\n%s%s", code, &p.stdout, &p.stderr)
		}
	}
}

// TestTrainersGoOnWithoutLossOrDoubles: two trainers with pushes in flight are killed
// some time after a checkpoint, and go on from it: the audit rows count every batch
// of theirs once.
func TestTrainersGoOnWithoutLossOrDoubles(t *testing.T) {
	c := start(t, localcluster.Options{})
	dest, dir := t.TempDir(), t.TempDir()
	config := filepath.Join(dir, "job.yaml")
	err := os.WriteFile(config, fmt.Appendf(nil, `job: pair
trainers: 2
lease: 5m # who stands still for longer cannot enter again
steps: 1000000000
batch: 64
in_flight: 3
audit: true
evaluate: false
resume: auto
generator: {examples: 0, held: 0, keys: 400, categorical: 4, dense: 3}
model: {dim: 8, bottom: [16], top: [16], sleep: 10ms} # else what they say of so many steps is long to read
checkpoint: {to: %s, at_end: true, on_stop: true, every: 1s, keep: 2}
`, dest), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	tr := &trainers{c: c, dir: dir, config: config, n: 2}
	tr.start()
	tr.reached(50)
	m := c.createCheckpoint(dest, "midway")
	if len(m.Blobs) != 2 {
		t.Fatalf("blobs %+v, want those of two trainers", m.Blobs)
	}
	tr.reached(120)
	for _, p := range tr.procs {
		p.kill()
	}
	c.mustRestore(dest+"/midway", "--replace")
	tr.start()
	tr.reached(200)
	for _, p := range tr.procs { // told to stop, they make a checkpoint and leave
		if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
	}
	stopped := ""
	for _, p := range tr.procs {
		if code := p.code(t, patience); code != 130 {
			t.Fatalf("exit code %d of a trainer that was told to stop:\n%s%s", code, &p.stdout, &p.stderr)
		}
		if _, after, ok := strings.Cut(p.stdout.String(), dest+"/pair-stop-"); ok {
			stopped = max(stopped, dest+"/pair-stop-"+strings.Fields(after)[0])
		}
	}
	if stopped == "" {
		t.Fatalf("no checkpoint was made when they were told to stop: %v", listed(t, dest))
	}
	c.mustRestore(stopped, "--replace")
	steps := int(tr.most()) + 50
	tr.start("--steps", fmt.Sprint(steps))
	tr.ended()
	for _, p := range tr.procs {
		if out := p.stdout.String(); !strings.Contains(out, "continued from") || !strings.Contains(out, dest+"/pair-end-") {
			t.Errorf("a trainer does not say where it went on from, or that it made a checkpoint:\n%s%s", out, &p.stderr)
		}
	}
	counts := auditCounts(c, "pair.audit", 2)
	for shard, n := range counts {
		if n[0] != steps || n[1] != steps {
			t.Errorf("shard %d counts %v pushes of the two trainers, want %d each", shard, n, steps)
		}
	}
	var policies struct{ Policies []policyState }
	if err := json.Unmarshal([]byte(c.must("checkpoint", "policy", "list", "-o", "json")), &policies); err != nil ||
		len(policies.Policies) > 0 {
		t.Errorf("%+v, %v: the job is done, and its policy is still there", policies, err)
	}
	ends := 0
	for _, s := range c.Servers() { // another one makes it again if the leader that made it did not say so
		made := 0
		for line := range bytes.Lines(mustRead(t, s.LogFile)) {
			if bytes.Contains(line, []byte(`"msg":"made a checkpoint"`)) &&
				bytes.Contains(line, []byte(`"checkpoint":"pair-end-`)) {
				made++
			}
		}
		if ends += made; made > 1 {
			t.Errorf("server %s made %d checkpoints at the end, want one for both: %v", s.Name, made, listed(t, dest))
		}
	}
	complete := 0
	for name, state := range listed(t, dest) {
		if strings.HasPrefix(name, "pair-end-") && state == "complete" {
			complete++
		}
	}
	if ends == 0 || complete == 0 {
		t.Errorf("no checkpoint was made at the end: %v", listed(t, dest))
	}
}

// auditCounts reads, for each shard, how many pushes of each trainer it applied.
func auditCounts(c *cluster, name string, trainers int) (counts [][]int) {
	c.t.Helper()
	cl := c.dial(client.Options{})
	table, err := cl.Table(deadline(c.t, patience), name)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, s := range cl.Map().Shards {
		k, err := cl.Map().KeyInShard(table.Schema().ID, s.ID)
		if err != nil {
			c.t.Fatal(err)
		}
		row := make([]float32, table.Dim())
		if err := table.Pull(deadline(c.t, patience), []rowraft.Key{k}, row); err != nil {
			c.t.Fatal(err)
		}
		n := make([]int, trainers)
		for i := range n {
			n[i] = int(math.Round(float64(row[i])))
		}
		counts = append(counts, n)
	}
	return counts
}
