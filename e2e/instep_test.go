package e2e

import (
	"context"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/localcluster"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// stepWorkers are processes that train in one job of mode sync, each of them started by
// the test under a name of its own.
type stepWorkers struct {
	c      *cluster
	dir    string
	job    string
	run    []byte // id of the job's run, once it is known
	result func(worker string) string
}

// inStepJob writes the file of a job of three workers; more is YAML.
func inStepJob(c *cluster, job, more string) *stepWorkers {
	c.t.Helper()
	w := &stepWorkers{c: c, dir: c.t.TempDir(), job: job}
	w.result = func(worker string) string { return filepath.Join(w.dir, worker+".json") }
	err := os.WriteFile(filepath.Join(w.dir, "job.yaml"), fmt.Appendf(nil, `job: %s
mode: sync
trainers: 3
batch: 16
evaluate: false
generator: {examples: 0, held: 0, keys: 400, categorical: 4, dense: 3}
model: {dim: 8, bottom: [8], top: [8]}
%s`, job, more), 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	return w
}

func (w *stepWorkers) start(worker string) *running {
	w.c.t.Helper()
	return spawn(w.c.t, "rowraft-trainer", "train", "--config", filepath.Join(w.dir, "job.yaml"), "--worker", worker,
		"--json", w.result(worker),
		"--endpoints", strings.Join(w.c.Endpoints(), ","), "--insecure", "--device", "cpu", "--progress", "none")
}

// until describes the job until it is as wanted.
func (w *stepWorkers) until(what string, ok func(jobView) bool) jobView {
	w.c.t.Helper()
	v := w.c.jobUntil(w.job, what, ok)
	if run, err := hex.DecodeString(v.Run); err != nil || len(run) != 16 {
		w.c.t.Fatalf("the job's run is %q: %v", v.Run, err)
	} else {
		w.run = run
	}
	return v
}

// farther waits until a worker has trained some more steps.
func (w *stepWorkers) farther(worker string, steps uint64) jobView {
	w.c.t.Helper()
	_, from := w.until(worker+" trains", func(v jobView) bool {
		state,
			_ := v.member(worker)
		return state == "training"
	}).member(worker)
	v := w.until(fmt.Sprintf("%s is farther than step %d", worker, from), func(v jobView) bool {
		state, step := v.member(worker)
		return state != "training" || step >= from+steps
	})
	if state, step := v.member(worker); state != "training" {
		w.c.t.Fatalf("worker %s is %s in step %d, from which it was to go on: %+v", worker, state, step, v)
	}
	return v
}

// lost waits until a worker is out of the job.
func (w *stepWorkers) lost(worker string) jobView {
	w.c.t.Helper()
	return w.until(worker+" is lost", func(v jobView) bool { state, _ := v.member(worker); return state == "lost" })
}

func signal(t testing.TB, p *running, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// stopInStep stops a worker's process and returns the step that waits for this worker and
// no other: all others have pushed it to every shard.
func (w *stepWorkers) stopInStep(p *running, rank uint32) (step uint64) {
	w.c.t.Helper()
	signal(w.c.t, p, syscall.SIGSTOP)
	return w.waitsFor(rank)
}

// waitsFor returns the step that is open in the job and waits for one rank only.
func (w *stepWorkers) waitsFor(rank uint32) (step uint64) {
	w.c.t.Helper()
	ctx := deadline(w.c.t, patience)
	err := poll(ctx, func() (err error) {
		step, err = w.openStep(ctx, rank)
		return err
	})
	if err != nil {
		w.c.t.Fatal(err)
	}
	return step
}

func (w *stepWorkers) openStep(ctx context.Context, rank uint32) (step uint64, err error) {
	leads, err := w.c.leaders(ctx)
	if err != nil {
		return 0, err
	}
	waits := false
	for shard, s := range leads {
		var st *rowraftv1.JobStateReply
		err := admin(ctx, s.Addr, func(ctx context.Context, a rowraftv1.ReplicasClient) (err error) {
			st, err = a.JobState(ctx, &rowraftv1.JobStateRequest{Shard: uint32(shard), Job: w.run})
			return err
		})
		if err != nil {
			return 0, err
		}
		at := max(st.LastClosed, st.HighestOpen)
		if step == 0 {
			step = at
		}
		if at != step || len(st.WaitingFor) > 0 && !slices.Equal(st.WaitingFor, []uint32{rank}) {
			return 0, fmt.Errorf("shard %d has closed step %d, step %d is open and waits for %v; shard 0 is at step %d", shard,
				st.LastClosed, st.HighestOpen, st.WaitingFor, step)
		}
		waits = waits || len(st.WaitingFor) > 0
	}
	if !waits {
		return 0, fmt.Errorf("no shard waits for rank %d in step %d", rank, step)
	}
	return step, nil
}

// audit returns the audit row of each shard. A batch counts 3 / (contributors of its step)
// in its worker's dimension.
func (w *stepWorkers) audit() (rows [][]float32) {
	w.c.t.Helper()
	cl := w.c.dial(client.Options{})
	table, err := cl.Table(deadline(w.c.t, patience), w.job+".audit")
	if err != nil {
		w.c.t.Fatal(err)
	}
	for _, s := range cl.Map().Shards {
		key, err := cl.Map().KeyInShard(table.Schema().ID, s.ID)
		if err != nil {
			w.c.t.Fatal(err)
		}
		row := make([]float32, table.Dim())
		if err := table.Pull(deadline(w.c.t, patience), []rowraft.Key{key}, row); err != nil {
			w.c.t.Fatal(err)
		}
		rows = append(rows, row)
	}
	return rows
}

// TestWorkersInStepComeAndGo: of three workers in step one is killed inside a step, and the
// others go on when its lease has run out; one that comes late takes its rank; that one is stopped inside a
// step until it is lost, and when it wakes up takes part again, as another incarnation.
//
// The audit rows tell that no part was lost or counted twice: a step adds 3 to each of
// them, shared by its contributors.
func TestWorkersInStepComeAndGo(t *testing.T) {
	c := start(t, localcluster.Options{})
	w := inStepJob(c, "synced", "lease: 15s\naudit: true\nsteps: 1000000000\n")
	a, b, dies := w.start("a"), w.start("b"), w.start("dies")
	w.until("all train", func(v jobView) bool { return v.Training == 3 })
	before := w.farther("a", 10)
	watched := watch(t, c, w.job)
	rank := before.rank("dies")
	in := w.stopInStep(dies, uint32(rank))
	dies.kill()
	w.lost("dies")
	after := w.farther("a", 10)
	if after.Generation <= before.Generation || after.Training != 2 {
		t.Errorf("without one worker the job is %+v", after)
	}
	for shard, row := range w.audit() {
		// Both others are in every step: first of three, since the death of two contributors.
		mine, yours, gone := row[before.rank("a")], row[before.rank("b")], row[rank]
		alone := (mine - gone) / 1.5
		if mine != yours || alone < 1 || alone != float32(math.Trunc(float64(alone))) || gone > float32(in) ||
			gone < float32(in)-1 {
			t.Errorf("shard %d: a worker died in step %d, the audit row is %v", shard, in, row)
		}
	}

	late := w.start("late")
	joined := w.farther("late", 3)
	if got := joined.rank("late"); got != rank {
		t.Errorf("the late worker has rank %d, want %d, which is free", got, rank)
	}
	if joined.incarnation("late") <= max(before.incarnation("a"), before.incarnation("b"), before.incarnation("dies")) {
		t.Errorf("the incarnation of the late worker is not the newest: %+v", joined)
	}
	w.stopInStep(late, uint32(rank))
	w.lost("late")
	w.farther("a", 3)
	signal(t, late, syscall.SIGCONT)
	again := w.until("late is back", func(v jobView) bool { state, _ := v.member("late"); return state == "training" })
	if again.rank("late") != rank || again.incarnation("late") <= joined.incarnation("late") {
		t.Errorf("when it wakes up it is %+v, before it was %+v", again, joined)
	}
	w.farther("late", 3)
	t.Logf("killed in step %d; who was lost says: %s", in, strings.TrimSpace(late.stderr.String()))
	watched.interrupt(t, w.job)
	w.farther("a", 3)
	end := watch(t, c, w.job)
	c.must("job", "stop", w.job)
	end.ends(t, "stopped")
	steps, changes := int64(0),
		int64(w.until("it is stopped", func(v jobView) bool { return v.State == "stopped" }).Generation)
	for worker, p := range map[string]*running{"a": a, "b": b, "late": late} {
		if code := p.code(t, patience); code != 0 {
			t.Errorf("worker %s: exit code %d:\n%s%s", worker, code, &p.stdout, &p.stderr)
		}
		var r struct {
			JobSteps    int64 `json:"job_steps"`
			BatchesLate int64 `json:"batches_late"`
		}
		readJSON(t, w.result(worker), &r)
		steps = max(steps, r.JobSteps)
		if r.BatchesLate > changes { // a step that a change of members found open
			t.Errorf("worker %s: %d batches were late in %d generations", worker, r.BatchesLate, changes)
		}
	}
	for shard, row := range w.audit() {
		sum := row[0] + row[1] + row[2]
		closed := int64(sum) / 3
		if sum != float32(3*closed) || closed > steps || closed < steps-2*changes {
			t.Errorf("shard %d: the audit row %v is not that of %d steps of the job, in %d generations", shard, row, steps,
				changes)
		}
	}
	c.sameDigests()
}

// TestAStepOutlivesTheScheduler: the server that leads the scheduler is killed while a
// step is open. The step waits, and ends under the next leader; the job goes on and is stopped at one
// boundary, with every batch counted once.
func TestAStepOutlivesTheScheduler(t *testing.T) {
	beforeRelease(t)
	c := start(t, localcluster.Options{})
	w := inStepJob(c, "steady", "lease: 10m\naudit: true\nsteps: 1000000000\n")
	names := []string{"a", "b", "c"}
	var all []*running
	for _, worker := range names {
		all = append(all, w.start(worker))
	}
	w.until("all train", func(v jobView) bool { return v.Training == 3 })
	v := w.farther("a", 10)
	watched := watch(t, c, w.job)
	rank := uint32(v.rank("c"))
	in := w.stopInStep(all[2], rank)
	leader := c.metaLeader()
	c.killAll([]*localcluster.Server{leader})
	c.metaLeader()
	if now := w.waitsFor(rank); now != in {
		t.Errorf("step %d was open, and under the next leader it is step %d", in, now)
	}
	signal(t, all[2], syscall.SIGCONT)
	now := w.until("c goes on under the next leader", func(v jobView) bool {
		_, step := v.member("c")
		return step >= in+10
	})
	if now.Generation != v.Generation || now.Training != 3 {
		t.Errorf("under the next leader the job is %+v, want all three in generation %d", now, v.Generation)
	}
	c.must("job", "stop", w.job)
	var steps int64 // of the job, of which each worker has its part
	for i, p := range all {
		if code := p.code(t, patience); code != 0 {
			t.Errorf("worker %s: exit code %d:\n%s%s", names[i], code, &p.stdout, &p.stderr)
		}
		var r struct {
			JobSteps           int64 `json:"job_steps"`
			PushesAcknowledged int64 `json:"pushes_acknowledged"`
			BatchesLate        int64 `json:"batches_late"`
		}
		readJSON(t, w.result(names[i]), &r)
		if i == 0 {
			steps = r.JobSteps
		}
		if r.JobSteps != steps || r.PushesAcknowledged != steps || r.BatchesLate != 0 || steps <= int64(in) {
			t.Errorf("worker %s: %+v, want the %d steps of worker a, more than %d, each acknowledged", names[i], r, steps, in)
		}
	}
	watched.ends(t, "stopped")
	for shard, row := range w.audit() {
		if all := float32(steps); !slices.Equal(row, []float32{all, all, all}) {
			t.Errorf("shard %d counts %v batches, want %d of each worker", shard, row, steps)
		}
	}
	c.restartAll([]*localcluster.Server{leader})
	if err := c.caughtUp(deadline(t, patience), leader); err != nil {
		t.Fatal(err)
	}
	c.sameDigests()
}

// TestAWorkerInStepLeavesAtASignal: one of three workers in step gets SIGTERM. It leaves in the middle of
// a step, each of its batches of that step counts once, and the others continue without waiting for its lease.
func TestAWorkerInStepLeavesAtASignal(t *testing.T) {
	c := start(t, localcluster.Options{Servers: 1, Shards: 2})
	w := inStepJob(c, "fewer", "lease: 1h\naudit: true\nsteps: 1000000000\n")
	names := []string{"a", "b", "leaves"}
	var all []*running
	for _, worker := range names {
		all = append(all, w.start(worker))
	}
	w.until("all train", func(v jobView) bool { return v.Training == 3 })
	before := w.farther("leaves", 10)
	signal(t, all[2], syscall.SIGTERM)
	type result struct {
		JobSteps           int64 `json:"job_steps"`
		PushesAcknowledged int64 `json:"pushes_acknowledged"`
		PushesUnknown      int64 `json:"pushes_unknown"`
		BatchesLate        int64 `json:"batches_late"`
	}
	over := func(i, want int) (r result) {
		t.Helper()
		if code := all[i].code(t, patience); code != want {
			t.Fatalf("worker %s: exit code %d, want %d:\n%s%s", names[i], code, want, &all[i].stdout, &all[i].stderr)
		}
		readJSON(t, w.result(names[i]), &r)
		return r
	}
	left := over(2, 130)
	w.farther("a", 1) // what it said before that may be of a time with all three
	after := w.farther("a", 10)
	if state, _ := after.member("leaves"); state != "stopped" || after.Training != 2 ||
		after.Generation != before.Generation+1 {
		t.Errorf("without the one that left the job is %+v, before it was in generation %d", after, before.Generation)
	}
	c.must("job", "stop", w.job)
	for i := range 2 {
		if r := over(i, 0); r.BatchesLate > 2 {
			t.Errorf("worker %s: %d batches were late, want at most those of steps that were open when one left", names[i],
				r.BatchesLate)
		}
	}
	if left.BatchesLate != 0 || left.PushesUnknown != 0 || left.PushesAcknowledged != left.JobSteps {
		t.Errorf("who left says %+v, want a batch in each of its steps, each acknowledged", left)
	}
	for shard, row := range w.audit() {
		// Its batches are a third of a step each, as those of the others in its steps; afterwards they share a step, but for
		// those that were open when one left.
		gone, mine, yours := row[after.rank("leaves")], row[after.rank("a")], row[after.rank("b")]
		steps := (gone + mine + yours) / 3
		if gone != float32(left.PushesAcknowledged) || steps != float32(math.Trunc(float64(steps))) ||
			mine+yours-2*gone < 3*5 || max(mine-yours, yours-mine) > 6 {
			t.Errorf("shard %d: the audit row is %v, %d batches are acknowledged of who left", shard, row,
				left.PushesAcknowledged)
		}
	}
}
