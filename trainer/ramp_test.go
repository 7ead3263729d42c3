package trainer

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tables"
)

// underWay counts the batches of all trainers between their pull and the end of their push.
type underWay struct {
	t     *testing.T
	every int

	mu     sync.Mutex
	pushed int
	now    int
	most   int
}

// counting are the tables of one trainer. A batch has embeddings and dense rows, as no other call has.
type counting struct {
	tables.Tables
	*underWay
}

func (c counting) Pull(ctx context.Context, segs []tables.Segment) error {
	if len(segs) > 1 {
		c.mu.Lock()
		c.now++
		c.most = max(c.most, c.now)
		// A trainer also counts what it has read, which may be under way.
		if allowed := 1 + (c.pushed+c.now)/c.every; c.now > allowed {
			c.t.Errorf("after %d pushes: %d batches under way, want at most %d", c.pushed, c.now, allowed)
		}
		c.mu.Unlock()
	}
	return c.Tables.Pull(ctx, segs)
}

func (c counting) Push(ctx context.Context, segs []tables.Segment) error {
	if len(segs) == 1 {
		return c.Tables.Push(ctx, segs)
	}
	time.Sleep(time.Millisecond) //tidy:allow sleep pushes take time, so that several are under way
	c.mu.Lock()                  // no pull sees a push that is not counted
	defer c.mu.Unlock()
	c.now--
	c.pushed++
	return c.Tables.Push(ctx, segs)
}

// The trainers of an async job that share its data take their turns to begin: the batches under way are never more
// than the ramp allows, and at the end several. All data is trained although the other trainers wait at first.
func TestTrainersBeginInTurn(t *testing.T) {
	const workers, every = 3, 4
	cfg := tinyConfig(0, 2)
	cfg.Generator.Examples, cfg.Mode, cfg.Audit = 32*60, Async, true
	cfg.rampEvery = every
	no := false
	cfg.Evaluate = &no
	m := newTeam(t, workers)
	u := &underWay{t: t, every: every}
	m.wrap = func(l tables.Tables) tables.Tables { return counting{l, u} }
	steps := int64(0)
	for _, r := range m.trainParts(t, cfg, nil) {
		steps += r.Steps
	}
	if steps != 60 || u.pushed != 60 {
		t.Errorf("%d batches, %d pushes, want 60", steps, u.pushed)
	}
	if u.most < 3 {
		t.Errorf("%d batches were under way at most, want several", u.most)
	}
}

// lagging are tables whose pushes take long.
type lagging struct{ tables.Tables }

func (l lagging) Push(ctx context.Context, segs []tables.Segment) error {
	time.Sleep(25 * time.Millisecond) //tidy:allow sleep the delay is what the test is about
	return l.Tables.Push(ctx, segs)
}

// Many pushes in flight from the first batch on cost 0.03 to 0.06 of the AUC. The ramp keeps it.
func TestRampKeepsQuality(t *testing.T) {
	for seed := range uint64(2) {
		cfg := DefaultConfig()
		g := data.DefaultGenerator()
		g.Seed, g.Examples, g.Held, g.Categorical, g.Dense, g.Keys = seed+1, 12_800, 5_000, 10, 1, 50
		g.Signal, g.Zipf, g.Head = 6, 0.7, 500
		cfg.Generator, cfg.Seed, cfg.Batch, cfg.Device = &g, seed+1, 64, "cpu"
		cfg.Model = ModelConfig{Dim: 8, Bottom: []int{16}, Top: []int{16}}
		cfg.Embeddings.LR, cfg.Dense.LR = 0.1, 0.05
		auc := func(inFlight int) float64 {
			cfg.InFlight = new(inFlight)
			var r *report.Result
			if inFlight == 0 {
				r = mustRun(t, cfg, newLocal(t), nil)
			} else {
				r = mustRun(t, cfg, lagging{newLocal(t)}, nil)
			}
			return float64(r.AUC)
		}
		one, many := auc(0), auc(32)
		t.Logf("seed %d: AUC %.4f with in_flight 0, %.4f with in_flight 32", seed+1, one, many)
		if many < one-0.02 {
			t.Errorf("seed %d: AUC %.4f with in_flight 0, %.4f with in_flight 32", seed+1, one, many)
		}
	}
}

// takeTurns gives j the ramp of a trainer whose data is handed out in splits.
func takeTurns(j *Job) {
	j.ramp = newRamp(&j.cfg, false)
	if j.progress != nil {
		j.progress.ramp = j.ramp
	}
}

// A trainer whose turn has not come begins when those before it have left, and when they make no progress for a lease.
func TestAWaitingTrainerBeginsWithoutTheOthers(t *testing.T) {
	waits := func(members []int) (polls int) {
		synctest.Test(t, func(t *testing.T) {
			cfg, rank := tinyConfig(10, 0), 1
			cfg.Mode, cfg.Trainers, cfg.Rank, cfg.rampEvery, cfg.Lease = Async, 2, &rank, 100, time.Second
			j := newJob(t, cfg, newLocal(t), nil)
			takeTurns(j)
			j.ramp.Members(members, rank)
			f := &rampFeed{j: j, ctx: t.Context()}
			for f.wait() != nil {
				polls++
			}
		})
		return polls
	}
	if polls := waits([]int{1, 2}); polls != 0 {
		t.Errorf("without trainer 0 it waited %d times", polls)
	}
	if polls := waits([]int{0, 1}); polls != int(time.Second/rampPoll)+1 {
		t.Errorf("it began after %d polls of %v, want a lease of 1 s", polls, rampPoll)
	}
}

// joinedBy are tables that count the batches under way. At push 10 two trainers join.
type joinedBy struct {
	tables.Tables
	j *Job

	mu           sync.Mutex
	pushed, now  int
	before, late int // the most under way before push 10, and after push 20
}

func (l *joinedBy) Pull(ctx context.Context, segs []tables.Segment) error {
	l.mu.Lock()
	l.now++
	if l.pushed < 10 {
		l.before = max(l.before, l.now)
	} else if l.pushed >= 20 {
		l.late = max(l.late, l.now)
	}
	l.mu.Unlock()
	return l.Tables.Pull(ctx, segs)
}

func (l *joinedBy) Push(ctx context.Context, segs []tables.Segment) error {
	time.Sleep(2 * time.Millisecond) //tidy:allow sleep pushes take time, so that several are under way
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now--
	if l.pushed++; l.pushed == 10 {
		l.j.ramp.Members([]int{0, 1, 2}, 0)
	}
	return l.Tables.Push(ctx, segs)
}

// A trainer that others join has fewer batches under way from then on.
func TestBatchesUnderWayFollowTheMembers(t *testing.T) {
	cfg := tinyConfig(60, 4)
	cfg.Mode, cfg.rampEvery = Async, 1000
	no := false
	cfg.Evaluate = &no
	l := &joinedBy{Tables: newLocal(t)}
	l.j = newJob(t, cfg, l, nil)
	l.j.ramp.Reached(5999)
	l.now = 0 // without the pulls of the start
	if _, err := l.j.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l.before <= 2 || l.late != 2 {
		t.Errorf("%d batches were under way alone, %d with two more trainers; want up to 6, and 2", l.before, l.late)
	}
}

// The ramp is that of the job: a trainer that joins its steps, or continues after earlier runs, does not repeat it.
func TestTheRampIsOfTheJob(t *testing.T) {
	for _, mode := range []string{Async, Sync, SSP} {
		cfg := tinyConfig(10, 2)
		cfg.Mode, cfg.rampEvery, cfg.member = mode, 100, &jobs.Member{Steps: 300}
		if got := newJob(t, cfg, newLocal(t), nil).ramp.Limit(4); got != 4 {
			t.Errorf("mode %s, after 300 batches of earlier workers: %d batches may be under way, want 4", mode, got)
		}
	}
	cfg := tinyConfig(10, 2)
	cfg.Mode, cfg.rampEvery = Sync, 100
	j := newJob(t, cfg, newLocal(t), nil)
	joinAt(j, 301)
	if got := j.ramp.Limit(4); got != 4 {
		t.Errorf("at step 301 of the job: %d batches may be under way, want 4", got)
	}
}
