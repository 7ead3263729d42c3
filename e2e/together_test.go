package e2e

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/member"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tables"
)

// runTogether runs a trainer for each rank of a job on c. watch is told of each event.
func runTogether(t *testing.T, c *cluster, cfg trainer.Config, watch func(e report.Event), f func()) []*report.Result {
	t.Helper()
	return inStep(t, cfg, func(ctx context.Context, cfg trainer.Config) (*report.Result, error) {
		return enterAndRun(ctx, c, cfg, watch)
	}, f)
}

// enterAndRun is what a trainer's process does.
func enterAndRun(ctx context.Context, c *cluster, cfg trainer.Config,
	watch func(e report.Event)) (*report.Result, error) {
	cl := c.dial(client.Options{})
	if err := trainer.Enter(ctx, &cfg, cl, ""); err != nil {
		return nil, err
	}
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

func (m *midway) make(c *cluster, dest string) {
	defer close(m.over)
	<-m.reached
	m.made = c.createCheckpoint(dest, "midway")
}

// TestAWorkerThatRestartsKnowsTheStepsOfItsJob: a job in step goes on from a checkpoint, and then one of its
// workers restarts, which finds no state of its own to go on from: its learning rate is that of the
// others' step all the same, or its first push is refused.
func TestAWorkerThatRestartsKnowsTheStepsOfItsJob(t *testing.T) {
	beforeRelease(t)
	const before, all = 8, 24
	dest := t.TempDir()
	c := start(t, localcluster.Options{Servers: 1, Shards: 1})
	cfg := smallJob("restarts", "sgd", before)
	cfg.Mode, cfg.Trainers, cfg.Lease, cfg.Audit, cfg.Batch = trainer.Sync, 2, 5*time.Minute, false, 16
	cfg.Generator.Examples = 1 << 14
	cfg.Dense.Schedule = &trainer.ScheduleConfig{Kind: trainer.Linear, Steps: 100}
	cfg.Checkpoint.AtEnd = dest
	made := runTogether(t, c, cfg, nil, func() {})[0].Checkpoint
	c.mustRestore(made, "--replace")

	cfg.Steps, cfg.Resume, cfg.Checkpoint.AtEnd = all, "auto", ""
	back := make(chan struct{}) // rank 1 has come again
	results := inStep(t, cfg, func(ctx context.Context, cfg trainer.Config) (*report.Result, error) {
		if *cfg.Rank == 0 {
			return enterAndRun(ctx, c, cfg, func(e report.Event) {
				if e.Event == report.EventAck && e.JobStep >= before+4 {
					<-back
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
	}, func() {})
	for rank, r := range results {
		if r.JobSteps != all || r.BatchesLate != 0 {
			t.Errorf("trainer %d has taken part in %d steps, %d batches late, want %d and none", rank, r.JobSteps, r.BatchesLate,
				all)
		}
	}
}

// TestAStoppedJobStandsBehindOneStep: `job stop` has trainers in step end behind the same one, so that what goes
// on from the checkpoint that they make then ends with the bits of a run that was not stopped.
func TestAStoppedJobStandsBehindOneStep(t *testing.T) {
	needBinaries(t)
	const all, from = 120, 20
	dest := t.TempDir()
	c := start(t, localcluster.Options{Servers: 1, Shards: 2})
	cfg := smallJob("halts", "adagrad", 2)
	cfg.Mode, cfg.Trainers, cfg.Lease, cfg.Audit, cfg.Batch = trainer.Sync, 2, time.Minute, false, 16
	cfg.Generator.Examples = 1 << 13
	cfg.Dense.Schedule = &trainer.ScheduleConfig{Kind: trainer.Linear, Steps: all}
	cfg.Checkpoint.AtEnd = dest
	begun := runTogether(t, c, cfg, nil, func() {})[0].Checkpoint
	cfg.Steps, cfg.Resume, cfg.Checkpoint.AtEnd = all, "auto", ""

	c.mustRestore(begun, "--replace")
	straight := runTogether(t, c, cfg, nil, func() {})
	want := c.digestOfAll()

	c.mustRestore(begun, "--replace")
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
	}, func() {
		defer close(told)
		<-reached
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
	c.mustRestore(made, "--replace")
	for rank, r := range runTogether(t, c, cfg, nil, func() {}) {
		if r.ResumedFrom != made || r.JobSteps != all || r.Examples != straight[rank].Examples {
			t.Errorf("trainer %d went on as %+v, the straight run was %+v", rank, r, straight[rank])
		}
	}
	if got := c.digestOfAll(); got != want {
		t.Errorf("digest %x after the stop behind step %d, %x without", got, steps[0], want)
	}
}

// inStep runs a trainer for each rank of a job, concurrently with f, and returns their results.
func inStep(t *testing.T, cfg trainer.Config, run func(context.Context, trainer.Config) (*report.Result, error),
	f func()) []*report.Result {
	t.Helper()
	ctx := deadline(t, patience)
	results := make([]*report.Result, cfg.Trainers)
	var all sync.WaitGroup
	for rank := range results {
		cfg := cfg
		cfg.Rank = &rank
		all.Go(func() {
			var err error
			if results[rank], err = run(ctx, cfg); err != nil {
				t.Errorf("trainer %d: %v", rank, err)
			}
		})
	}
	all.Go(f)
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return results
}
