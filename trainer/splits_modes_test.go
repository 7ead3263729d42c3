package trainer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer/member"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tables"
)

// dealer gives the splits of a plan to several trainers, none of which dies, as the scheduler does.
type dealer struct {
	plan    jobs.SplitPlan
	workers int64

	mu    sync.Mutex
	next  []int64 // by rank where splits are dealt so; else only the first
	open  map[int64]int
	ended []int64

	counted func() float32 // batches that the tables have
	batches float32        // of splits that were ended
	batch   int64
}

func newDealer(plan jobs.SplitPlan, workers int) *dealer {
	d := &dealer{plan: plan, workers: int64(workers), next: make([]int64, workers), open: map[int64]int{}}
	for rank := range d.next {
		d.next[rank] = int64(rank)
	}
	return d
}

// hand is the dealer as one trainer sees it.
type hand struct {
	*dealer
	rank int
}

func (h hand) NextSplit(_ context.Context, _ int64, _ int) (p jobs.Split, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, by := &h.next[0], int64(1)
	if h.plan.ByRank {
		at, by = &h.next[h.rank], h.workers
	}
	parts := (h.plan.Examples + h.plan.SplitExamples - 1) / h.plan.SplitExamples
	if *at >= parts*h.plan.Epochs {
		for _, rank := range h.open {
			if rank != h.rank {
				return p, jobs.ErrSplitsHeld
			}
		}
		for rank, n := range h.next { // dealt, and not asked for
			if h.plan.ByRank && rank != h.rank && n < parts*h.plan.Epochs {
				return p, jobs.ErrSplitsHeld
			}
		}
		return p, jobs.ErrNoSplits
	}
	n := *at
	*at += by
	h.open[n] = h.rank
	p = jobs.Split{Epoch: n / parts, Number: n % parts}
	p.From = p.Number * h.plan.SplitExamples
	p.To = min(p.From+h.plan.SplitExamples, h.plan.Examples)
	return p, nil
}

func (h hand) EndSplit(_ context.Context, p jobs.Split) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := p.Epoch*((h.plan.Examples+h.plan.SplitExamples-1)/h.plan.SplitExamples) + p.Number
	if rank, ok := h.open[n]; !ok || rank != h.rank {
		return fmt.Errorf("trainer %d ends part %d of epoch %d, which it does not have", h.rank, p.Number, p.Epoch)
	}
	delete(h.open, n)
	h.ended = append(h.ended, n)
	if h.batches += float32((p.To - p.From + h.batch - 1) / h.batch); h.counted() < h.batches {
		return fmt.Errorf("the tables have %v batches, and splits of %v are ended", h.counted(), h.batches)
	}
	return nil
}

// leave removes a worker from the team: the others no longer wait for it.
func (m *team) leave(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.quorum--; m.quorum > 0 {
		m.closeLocked(ctx)
	}
	m.change.Broadcast()
}

// batches returns the number of batches in the audit rows.
func (m *team) batches(t *testing.T) (sum float32) {
	audit := m.Schemas()[2]
	keys, err := m.KeyPerShard(t.Context(), audit.ID)
	if err != nil {
		t.Error(err)
		return 0
	}
	row := tables.Segment{Table: audit.ID, Dim: audit.Dim, Keys: keys[:1], Values: make([]float32, audit.Dim)}
	if err := m.Local.Pull(t.Context(), []tables.Segment{row}); err != nil {
		t.Error(err)
	}
	for _, n := range row.Values {
		sum += n
	}
	return sum
}

// trainParts runs all workers on data that is handed out; change may change the tables of each.
func (m *team) trainParts(t *testing.T, cfg Config, change func(*worker)) []*report.Result {
	t.Helper()
	workers := len(m.clocks)
	cfg.Trainers, cfg.splitData = workers, true
	d := newDealer(cfg.splitPlan(cfg.Generator.Examples), workers)
	d.counted, d.batch = func() float32 { return m.batches(t) }, int64(cfg.Batch)
	results := make([]*report.Result, workers)
	var all sync.WaitGroup
	for rank := range results {
		all.Go(func() {
			cfg, w := cfg, &worker{team: m, rank: rank}
			cfg.Rank = &rank
			if change != nil {
				change(w)
			}
			cfg.member = &jobs.Member{Splits: d.plan}
			var at tables.Tables = w
			if m.wrap != nil {
				at = m.wrap(w)
			}
			j, err := NewJob(t.Context(), cfg, at, nil)
			if err != nil {
				t.Error(err)
				return
			}
			j.cfg.member = nil
			j.splits = member.NewSplits(j.set, hand{d, rank}, d.plan, cfg.usesSteps())
			takeTurns(j)
			if results[rank], err = j.Run(t.Context()); err != nil {
				t.Error(err)
			}
			m.leave(t.Context())
		})
	}
	all.Wait()
	parts := (d.plan.Examples + d.plan.SplitExamples - 1) / d.plan.SplitExamples
	if slices.Sort(d.ended); int64(len(d.ended)) != parts*d.plan.Epochs ||
		len(slices.Compact(d.ended)) != len(d.ended) {
		t.Errorf("the splits %v were ended, want each of %d once", d.ended, parts*d.plan.Epochs)
	}
	if t.Failed() {
		t.FailNow()
	}
	return results
}

// In every mode several trainers read each example of each epoch once, and no trainer waits for one that has
// nothing left: with splits of different lengths, with batches that are not finite, and with several threads.
func TestEveryModeReadsParts(t *testing.T) {
	const examples, epochs = 1000, 2
	for _, tc := range []struct {
		mode     string
		inFlight int
		threads  int
	}{{Sync, 0, 1}, {Sync, 3, 2}, {SSP, 0, 1}, {SSP, 2, 1}, {Geo, 0, 1}, {Geo, 2, 1}, {Async, 2, 2}} {
		name := fmt.Sprintf("%s with in_flight %d and %d threads", tc.mode, tc.inFlight, tc.threads)
		cfg := modeConfig(tc.mode, 0, tc.inFlight)
		cfg.Epochs, cfg.Threads, cfg.Batch = epochs, tc.threads, 24
		cfg.Generator.Examples = examples // 21 splits of 48, the last of which is of 40: 2 × 11 for rank 0
		if tc.mode == SSP {
			cfg.Staleness = 2
		}
		m := newTeam(t, 3)
		results := m.trainParts(t, cfg, nil)
		read, pushes := int64(0), int64(0)
		for _, r := range results {
			read, pushes = read+r.Examples, pushes+r.PushesAcknowledged
			if r.PushesSent != r.PushesAcknowledged || r.BatchesLate != 0 {
				t.Errorf("%s: trainer %d: %+v", name, r.Rank, r)
			}
		}
		counted := m.batches(t)
		if read != examples*epochs || pushes != 42*epochs || counted != float32(pushes) {
			t.Errorf("%s: %d examples were read in %d batches, and %v counted; want %d in %d", name, read, pushes,
				counted, examples*epochs, 42*epochs)
		}
	}
}

// Two sync runs on splits, with one seed, give the same bits: the assignment of splits does not depend on which
// trainer asks first.
func TestSyncOnPartsIsReproducible(t *testing.T) {
	cfg := modeConfig(Sync, 0, 0)
	cfg.Generator.Examples, cfg.Epochs, cfg.Batch = 1000, 2, 24
	run := func(slow int) *team {
		m := newTeam(t, 3)
		m.trainParts(t, cfg, func(w *worker) {
			w.before = func(string, int64) error {
				if w.rank == slow { // the others have asked by then
					m.mu.Lock()
					defer m.mu.Unlock()
					for len(m.parts[m.closed+1]) < m.quorum-1 {
						m.change.Wait()
					}
				}
				return nil
			}
		})
		return m
	}
	a := bits(run(0).Local)
	if b := bits(run(2).Local); !slices.Equal(a, b) {
		t.Error("two runs with one seed differ")
	}
}

// lateAt closes a step without half of the rows of the first table, once.
type lateAt struct {
	*tables.Local
	step  int64
	steps []int64
	rows  []int
}

func (l *lateAt) PushStep(_ context.Context, step int64, _ []rowraft.Position,
	segs []tables.Segment) (tables.StepResult, error) {
	l.steps, l.rows = append(l.steps, step), append(l.rows, tables.CountRows(segs))
	if step != l.step {
		return tables.StepResult{Next: step + 1}, nil
	}
	half := segs[0]
	n := len(half.Keys) / 2
	half.Keys, half.Values = half.Keys[:n], half.Values[:n*half.Dim]
	return tables.StepResult{Late: 1, Next: step + 2, Rest: []tables.Segment{half}}, nil
}

func (l *lateAt) PushIdle(ctx context.Context, step int64, read []rowraft.Position) (tables.StepResult, error) {
	return l.PushStep(ctx, step, read, nil)
}

func (l *lateAt) PushClock(context.Context, uint64, []rowraft.Position, []tables.Segment) error {
	panic("no clocks in step")
}

func (l *lateAt) WaitClock(context.Context, uint64) (uint64, error) { panic("no clocks in step") }

// Gradients that missed a step because the members changed go into the next step, on the shards that did not take
// them, so that each example is trained; with a quorum the batch is late.
func TestWhatAStepDidNotTakeIsPushedAgain(t *testing.T) {
	for _, quorum := range []float64{1, 0.5} {
		cfg := modeConfig(Sync, 0, 0)
		cfg.Generator.Examples, cfg.Epochs, cfg.Batch = 96, 1, 24
		cfg.Audit, cfg.splitData, cfg.Quorum = false, true, quorum
		d := newDealer(cfg.splitPlan(96), 1)
		d.counted, d.batch = func() float32 { return 100 }, 24
		cfg.member = &jobs.Member{Splits: d.plan}
		tables := &lateAt{Local: newLocal(t), step: 2}
		j, err := NewJob(t.Context(), cfg, tables, nil)
		if err != nil {
			t.Fatal(err)
		}
		j.cfg.member = nil
		j.splits = member.NewSplits(j.set, hand{d, 0}, d.plan, true)
		j.pausePoint.SetPace(1)
		r, err := j.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		steps, late := []int64{1, 2, 4, 5, 6}, int64(0)
		if quorum < 1 {
			steps, late = []int64{1, 2, 4, 5}, 1
		}
		if !slices.Equal(tables.steps, steps) || r.PushesAcknowledged != 4-late || r.BatchesLate != late ||
			len(d.ended) != 4 {
			t.Errorf("quorum %v: steps %v of %v rows, %+v; want the steps %v", quorum, tables.steps, tables.rows, r,
				steps)
		}
		// Else it could stop at no boundary with the others.
		if at := j.pausePoint.Begun(); at != steps[len(steps)-1] {
			t.Errorf("quorum %v: its first boundary is %d, after the steps %v", quorum, at, steps)
		}
		if quorum == 1 && !(tables.rows[2] > 0 && tables.rows[2] < tables.rows[1]/2+1) {
			t.Errorf("rows in each step: %v, want half of those of step 2 in step 4", tables.rows)
		}
	}
}
