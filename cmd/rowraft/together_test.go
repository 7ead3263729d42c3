package main

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/member"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tableconf"
	"github.com/rowraft/rowraft/trainer/tables"
)

// runTogether runs a trainer for each rank of a job on c. watch is told of each event.
func runTogether(t *testing.T, c *live, cfg trainer.Config, watch report.Observer,
	f func(context.Context)) []*report.Result {
	t.Helper()
	return runRanks(t, cfg, func(ctx context.Context, cfg trainer.Config) (*report.Result, error) {
		return enterAndRun(ctx, c, cfg, watch)
	}, f)
}

// enterAndRun does what the process of a trainer does.
func enterAndRun(ctx context.Context, c *live, cfg trainer.Config, watch report.Observer) (*report.Result, error) {
	return enterAs(ctx, c, cfg, "", watch)
}

// enterAs is enterAndRun for a worker with a name.
func enterAs(ctx context.Context, c *live, cfg trainer.Config, worker string,
	watch report.Observer) (r *report.Result, err error) {
	cl := c.dial()
	if err := trainer.Enter(ctx, &cfg, cl, worker); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			trainer.Abandon(ctx, &cfg, err)
		}
	}()
	j, err := trainer.NewJob(ctx, cfg, tables.NewCluster(cl), watch)
	if err != nil {
		return nil, err
	}
	saved, err := trainer.FindSaved(ctx, &cfg, cl)
	if err != nil {
		return nil, err
	}
	return j.RunOn(ctx, cl, saved)
}

// midway makes a checkpoint in the middle of a run, which is slow from a step on, and then
// slower, until it is made: the run must not end before.
type midway struct {
	step    int64
	slowed  atomic.Int64 // steps
	reach   func()
	reached chan struct{}
	over    chan struct{}
	made    *checkpoint.Manifest
}

func newMidway(step int64) *midway {
	m := &midway{step: step, reached: make(chan struct{}), over: make(chan struct{})}
	m.reach = sync.OnceFunc(func() { close(m.reached) })
	return m
}

func (m *midway) watch(e report.Event) {
	if e.Event != report.EventStep || e.Step < m.step {
		return
	}
	m.reach()
	pause := 200 * time.Millisecond
	if m.slowed.Add(1) > 10 {
		pause = 2 * time.Second
	}
	slow := time.NewTimer(pause)
	defer slow.Stop()
	select {
	case <-m.over:
	case <-slow.C:
	}
}

func (m *midway) make(c *live, dest string) {
	defer close(m.over)
	<-m.reached
	m.made = c.createCheckpoint(dest, "midway")
}

// TestAWorkerThatRestartsKnowsTheStepsOfItsJob: a job in step goes on from a checkpoint, and then one of its
// workers restarts, which finds no state of its own to go on from: its learning rate is that of the
// others' step all the same, or its first push is refused.
func TestAWorkerThatRestartsKnowsTheStepsOfItsJob(t *testing.T) {
	const before, all = 8, 24
	dest := t.TempDir()
	c := startLive(t, 1)
	cfg := smallJob("restarts", "sgd", before)
	cfg.Mode, cfg.Trainers, cfg.Lease, cfg.Audit, cfg.Batch = trainer.Sync, 2, 5*time.Minute, false, 16
	cfg.Generator.Examples = 1 << 14
	cfg.Dense.Schedule = &tableconf.Schedule{Kind: tableconf.Linear, Steps: 100}
	cfg.Checkpoint.AtEnd = dest
	made := runTogether(t, c, cfg, nil, func(context.Context) {})[0].Checkpoint
	c.restore(made, "--replace")

	cfg.Steps, cfg.Resume, cfg.Checkpoint.AtEnd = all, "auto", ""
	back := make(chan struct{}) // rank 1 has come again
	results := runRanks(t, cfg, func(ctx context.Context, cfg trainer.Config) (*report.Result, error) {
		if *cfg.Rank == 0 {
			return enterAndRun(ctx, c, cfg, func(e report.Event) {
				if e.Event == report.EventAck && e.JobStep >= before+4 {
					select {
					case <-back:
					case <-ctx.Done(): // the other trainer failed
					}
				}
			})
		}
		once, stop := context.WithCancel(ctx)
		defer stop()
		first, err := enterAndRun(once, c, cfg, func(e report.Event) {
			if e.Event == report.EventAck && e.JobStep >= before+2 {
				stop()
			}
		})
		if err != nil || first.ResumedFrom != made || !first.Interrupted {
			t.Errorf("its first process: %+v, %v", first, err)
		}
		return enterAndRun(ctx, c, cfg, func(e report.Event) {
			if e.Event == report.EventStart {
				close(back)
			}
		})
	}, func(context.Context) {})
	for rank, r := range results {
		if r.JobSteps != all || r.BatchesLate != 0 {
			t.Errorf("trainer %d has taken part in %d steps, %d batches late, want %d and none", rank, r.JobSteps, r.BatchesLate,
				all)
		}
	}
}

// TestAStoppedJobStandsBehindOneStep: a job that is stopped and resumed from the checkpoint of its end gives the bits
// of a run that was not stopped. TestTrainersOfAJobStopAtOneBoundary
// (scheduler/jobs) checks that the trainers stop at one boundary.
func TestAStoppedJobStandsBehindOneStep(t *testing.T) {
	const all, from = 120, 20
	dest := t.TempDir()
	c := startLive(t, 2)
	cfg := smallJob("halts", "adagrad", 2)
	cfg.Mode, cfg.Trainers, cfg.Lease, cfg.Audit, cfg.Batch = trainer.Sync, 2, time.Minute, false, 16
	cfg.Generator.Examples = 1 << 13
	cfg.Dense.Schedule = &tableconf.Schedule{Kind: tableconf.Linear, Steps: all}
	cfg.Checkpoint.AtEnd = dest
	begun := runTogether(t, c, cfg, nil, func(context.Context) {})[0].Checkpoint
	cfg.Steps, cfg.Resume, cfg.Checkpoint.AtEnd = all, "auto", ""

	c.restore(begun, "--replace")
	straight := runTogether(t, c, cfg, nil, func(context.Context) {})
	want := c.digest()

	c.restore(begun, "--replace")
	cfg.Checkpoint.To, cfg.Checkpoint.OnStop = dest, true
	reached, told := make(chan struct{}), make(chan struct{})
	reach := sync.OnceFunc(func() { close(reached) })
	stopped := runTogether(t, c, cfg, func(e report.Event) {
		if e.Event != report.EventStep || e.Step < from {
			return
		}
		reach()
		select { // so that it does not end before
		case <-told:
			<-time.After(300 * time.Millisecond) //tidy:allow sleep it makes the run slow, and waits for nothing
		case <-time.After(2 * time.Second):
		}
	}, func(ctx context.Context) {
		defer close(told)
		select {
		case <-reached:
		case <-ctx.Done():
			return
		}
		c.must("job", "stop", "halts")
	})
	made := stopped[0].Checkpoint
	var steps []int64
	for rank, r := range stopped {
		s, err := member.ReadSaved(t.Context(), made, "halts", rank)
		if err != nil || !r.Stopped || r.Checkpoint != made {
			t.Fatalf("trainer %d was stopped: %+v; its state in %q: %v", rank, r, made, err)
		}
		steps = append(steps, s.State.JobStep)
	}
	if steps[0] != steps[1] || steps[0] < from || steps[0] >= all {
		t.Errorf("the trainers ended behind the steps %v, of %d", steps, all)
	}
	c.restore(made, "--replace")
	for rank, r := range runTogether(t, c, cfg, nil, func(context.Context) {}) {
		if r.ResumedFrom != made || r.JobSteps != all || r.Examples != straight[rank].Examples {
			t.Errorf("trainer %d went on as %+v, the straight run was %+v", rank, r, straight[rank])
		}
	}
	if got := c.digest(); got != want {
		t.Errorf("digest %x after the stop behind step %d, %x without", got, steps[0], want)
	}
}

// runRanks runs a trainer for each rank of a job, concurrently with f, and returns their results. If one fails, the
// others are cancelled, and so is the context of f.
func runRanks(t *testing.T, cfg trainer.Config, run func(context.Context, trainer.Config) (*report.Result, error),
	f func(context.Context)) []*report.Result {
	t.Helper()
	ctx, cancel := context.WithCancel(testutil.Context(t))
	defer cancel()
	results := make([]*report.Result, cfg.Trainers)
	var all sync.WaitGroup
	for rank := range results {
		cfg := cfg
		cfg.Rank = &rank
		all.Go(func() {
			var err error
			if results[rank], err = run(ctx, cfg); err != nil {
				t.Errorf("trainer %d: %v", rank, err)
				cancel()
			}
		})
	}
	all.Go(func() { f(ctx) })
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return results
}

// TestATrainerGoesOnExactly: a run of 80 steps, a checkpoint somewhere on the way, and
// what goes on from it in a cluster with another number of shards, end in the same
// bits: equal digests of all rows, the dense weights among them.
func TestATrainerGoesOnExactly(t *testing.T) {
	dest, ctx := t.TempDir(), testutil.Context(t)
	a := startLive(t, 3)
	cfg := smallJob("exact", "adagrad", 80)
	cfg.Audit = false             // its rows are one per shard
	cfg.Generator.Examples = 1000 // five passes
	cfg.Checkpoint.AtEnd = dest
	pause := newMidway(30)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { pause.make(a, dest) })
	straight, err := enterAndRun(ctx, a, cfg, pause.watch)
	pause.reach() // or it failed before
	if err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	m := pause.made
	if m == nil {
		t.FailNow() // createCheckpoint has said why
	}
	if len(m.Blobs) != 2 || m.Blobs[0].Name != checkpoint.SplitsBlob("exact") || m.Blobs[1].Name != "trainer/exact/0" {
		t.Fatalf("the checkpoint has the blobs %+v, want those of the job's splits and of the trainer", m.Blobs)
	}
	want := a.digest()
	end, err := member.ReadSaved(t.Context(), straight.Checkpoint, "exact", 0)
	if err != nil || !end.State.Ended || end.State.Step != 80 {
		t.Fatalf("the checkpoint at the end, %q: %+v, %v", straight.Checkpoint, end, err)
	}
	a.must("checkpoint", "verify", dest+"/midway")

	b := startLive(t, 7)
	cfg.Checkpoint.AtEnd, cfg.Resume = "", dest+"/midway"
	refusedResume(b, cfg, "do not come from checkpoint", "rowraft checkpoint restore "+dest+"/midway")
	b.restore(dest+"/midway", "--replace")
	bad := cfg
	bad.Batch = 32
	refusedResume(b, bad, "batch was 64")
	r, err := enterAndRun(ctx, b, cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.ResumedAtStep < 30 || r.ResumedAtStep >= 80 || r.Steps != 80 || r.Examples != straight.Examples ||
		r.PushesAcknowledged != 80 {
		t.Errorf("it went on as %+v, the straight run was %+v", r, straight)
	}
	t.Logf("it went on after step %d", r.ResumedAtStep)
	if got := b.digest(); got != want {
		t.Errorf("digest %x after the stop, %x without", got, want)
	}
	refusedResume(b, cfg, "has trained since")
	cfg.Resume = "auto" // would begin at step 1, on rows that are trained
	refusedResume(b, cfg, "resume auto finds no checkpoint", "checkpoint restore")
	b.restore(straight.Checkpoint, "--replace")
	if got := b.digest(); got != want {
		t.Errorf("digest %x of the checkpoint at the end, want %x", got, want)
	}
}

// TestAJobResumesWithMoreTrainers: two trainers continue what one began, each example once, from a checkpoint without
// the count of the job's pushes.
func TestAJobResumesWithMoreTrainers(t *testing.T) {
	dest, ctx := t.TempDir(), testutil.Context(t)
	c := startLive(t, 2)
	cfg := smallJob("more", "sgd", 10)
	cfg.Audit, cfg.Generator.Examples, cfg.Epochs, cfg.Checkpoint.AtEnd = false, 1000, 2, dest
	one, err := enterAndRun(ctx, c, cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.restore(one.Checkpoint, "--replace")
	c.must("table", "delete", "more.progress", "--yes")
	cfg.Trainers, cfg.Steps, cfg.Checkpoint.AtEnd, cfg.Resume = 2, 0, "", one.Checkpoint
	sum := int64(0)
	for _, r := range runTogether(t, c, cfg, nil, func(context.Context) {}) {
		if sum += r.Examples; r.ResumedFrom == "" {
			t.Errorf("trainer %d did not resume", r.Rank)
		}
	}
	if sum != 2000 {
		t.Errorf("%d examples were trained, want 2000", sum)
	}
}

// refusedResume wants a trainer that goes on from a checkpoint to be refused.
func refusedResume(c *live, cfg trainer.Config, says ...string) {
	c.t.Helper()
	_, err := enterAndRun(testutil.Context(c.t), c, cfg, nil)
	for _, s := range says {
		if err == nil || !strings.Contains(err.Error(), s) {
			c.t.Errorf("error %v, want one that says %q", err, s)
		}
	}
}

// smallJob trains a small DLRM on generated data.
func smallJob(name, optimizer string, steps int64) trainer.Config {
	cfg := trainer.DefaultConfig()
	g := data.DefaultGenerator()
	g.Examples, g.Held, g.Keys, g.Categorical, g.Dense = 0, 200, 400, 4, 3
	no := false
	cfg.Job, cfg.Generator, cfg.Steps, cfg.InFlight, cfg.Batch, cfg.Seed = name, &g, steps, new(0), 64, 7
	cfg.Model = trainer.ModelConfig{Dim: 8, Bottom: []int{16}, Top: []int{16}}
	cfg.Embeddings.Optimizer, cfg.Dense.Optimizer = optimizer, optimizer
	cfg.Audit, cfg.Evaluate, cfg.Device = true, &no, "cpu"
	return cfg
}
