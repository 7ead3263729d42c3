package e2e

import (
	"context"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/tables"
)

// Trainers in step on a replicated cluster end with the bits that the same trainers give
// on tables inside the process, whose steps are averaged here: so two runs with one seed are
// equal, though leaders are killed in one of them.
func TestSyncParity(t *testing.T) {
	beforeRelease(t)
	const workers, steps = 3, 60
	c := start(t, localcluster.Options{})
	cfg := smallJob("synced", "adagrad", steps)
	cfg.Mode, cfg.Trainers, cfg.Lease, cfg.Batch = trainer.Sync, workers, time.Minute, 32

	k := startKiller(c, 2)
	defer k.stop()
	reached := make(chan int64, steps)
	results := inStep(t, cfg, func(ctx context.Context, cfg trainer.Config) (*trainer.Result, error) {
		if *cfg.Rank == 0 {
			defer close(reached)
		}
		cl := c.dial(client.Options{})
		if err := trainer.Enter(ctx, &cfg, cl, ""); err != nil {
			return nil, err
		}
		j, err := trainer.NewJob(ctx, cfg, tables.NewCluster(cl), func(e trainer.Event) {
			if *cfg.Rank == 0 && e.Event == trainer.EventAck {
				reached <- e.JobStep
			}
		})
		if err != nil {
			return nil, err
		}
		return j.RunOn(ctx, cl, nil)
	}, func() {
		for step := range reached { // beside the training, which waits for no victim
			if shard := step/20 - 1; step%20 == 0 && shard < int64(k.shards) {
				k.kill(rowraft.ShardID(shard))
			}
		}
	})
	k.stop()
	if k.killed != k.shards {
		t.Fatalf("%d leaders were killed, want %d", k.killed, k.shards)
	}
	for _, r := range results {
		if r.PushesAcknowledged != steps || r.JobSteps != steps || r.BatchesLate != 0 {
			t.Errorf("trainer %d: %d batches acknowledged, %d late, in %d steps; want %d steps", r.Rank, r.PushesAcknowledged, r.BatchesLate, r.JobSteps, steps)
		}
	}

	cl := c.dial(client.Options{})
	ids := make(map[string]rowraft.TableID)
	for _, name := range []string{".embeddings", ".dense", ".audit"} {
		table, err := cl.Table(deadline(t, patience), cfg.Job+name)
		if err != nil {
			t.Fatal(err)
		}
		ids[table.Schema().Name] = table.Schema().ID
	}
	local, err := tables.NewLocal(len(cl.Map().Shards), ids)
	if err != nil {
		t.Fatal(err)
	}
	mean := newAverager(local, workers)
	inStep(t, cfg, func(ctx context.Context, cfg trainer.Config) (*trainer.Result, error) {
		j, err := trainer.NewJob(ctx, cfg, averaged{mean, *cfg.Rank}, nil)
		if err != nil {
			return nil, err
		}
		return j.Run(ctx)
	}, func() {})
	remote := &recorder{Tables: tables.NewCluster(cl), keys: mean.keys}
	for _, s := range mean.schemas {
		if _, err := remote.EnsureTable(deadline(t, patience), s); err != nil {
			t.Fatal(err)
		}
	}
	compare(t, remote, &mean.recorder)
	c.sameDigests()
}

// inStep runs a trainer for each rank of a job, and beside, and returns their results.
func inStep(t *testing.T, cfg trainer.Config, run func(context.Context, trainer.Config) (*trainer.Result, error), beside func()) []*trainer.Result {
	t.Helper()
	ctx := deadline(t, patience)
	results := make([]*trainer.Result, cfg.Trainers)
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
	all.Go(beside)
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return results
}

// averager closes a step when all workers have pushed it: each key's gradients added in
// float32 from the lowest rank up, divided by the workers.
type averager struct {
	recorder
	ensure sync.Mutex

	parts  [][]tables.Segment // of the open step, by rank
	here   int
	closed chan struct{} // when the open step is
	err    error
	lock   sync.Mutex
}

func newAverager(t tables.Tables, workers int) *averager {
	return &averager{recorder: recorder{Tables: t}, parts: make([][]tables.Segment, workers), closed: make(chan struct{})}
}

// averaged are the tables of one worker.
type averaged struct {
	*averager
	rank int
}

var _ tables.Stepper = averaged{}

func (a averaged) EnsureTable(ctx context.Context, s rowraft.Schema) (rowraft.Schema, error) {
	a.ensure.Lock()
	defer a.ensure.Unlock()
	if have := slices.IndexFunc(a.schemas, func(o rowraft.Schema) bool { return o.Name == s.Name }); have >= 0 {
		return a.schemas[have], nil
	}
	return a.recorder.EnsureTable(ctx, s)
}

func (a averaged) PushStep(ctx context.Context, step int64, _ []rowraft.Position, segs []tables.Segment) (tables.StepResult, error) {
	a.lock.Lock()
	a.parts[a.rank], a.here = segs, a.here+1
	closed := a.closed
	if a.here == len(a.parts) {
		a.err = a.apply(ctx)
		a.here, a.closed = 0, make(chan struct{})
		close(closed)
	}
	a.lock.Unlock()
	<-closed
	return tables.StepResult{Next: step + 1}, a.err
}

func (a *averager) apply(ctx context.Context) error {
	var out []tables.Segment
	for i, first := range a.parts[0] { // all have the same tables
		sums := make(map[rowraft.Key][]float32)
		s := tables.Segment{Table: first.Table, Dim: first.Dim, LR: first.LR}
		for _, part := range a.parts {
			for k, key := range part[i].Keys {
				if sums[key] == nil {
					sums[key] = make([]float32, s.Dim)
					s.Keys = append(s.Keys, key)
				}
				for d, g := range part[i].Values[k*s.Dim:][:s.Dim] {
					sums[key][d] += g
				}
			}
		}
		slices.Sort(s.Keys)
		for _, key := range s.Keys {
			for _, sum := range sums[key] {
				s.Values = append(s.Values, sum/float32(len(a.parts)))
			}
		}
		out = append(out, s)
	}
	return a.Push(ctx, out)
}

func (a averaged) PushIdle(ctx context.Context, step int64, read []rowraft.Position) (tables.StepResult, error) {
	return a.PushStep(ctx, step, read, nil)
}

func (a averaged) PushClock(context.Context, uint64, []rowraft.Position, []tables.Segment) error {
	panic("no worker in step has a clock")
}

func (a averaged) WaitClock(context.Context, uint64) (uint64, error) { return math.MaxUint64, nil }
