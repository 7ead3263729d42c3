package trainer

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/state"
	"github.com/rowraft/rowraft/trainer/tableconf"
	"github.com/rowraft/rowraft/trainer/tables"
)

// team is a job over tables in this process: it does the work of shards and their leaders for one shard without
// faults.
type team struct {
	*tables.Local
	t      *testing.T
	quorum int
	wrap   func(tables.Tables) tables.Tables // wraps the tables of each trainer; nil: not

	mu           sync.Mutex
	change       sync.Cond
	closed       int64
	parts        map[int64]map[int][]tables.Segment // of open steps, by rank
	contributors map[int64][]int                    // contributors of closed steps
	clocks       []uint64
	lead         uint64 // the most that a clock was above the slowest
}

func newTeam(t *testing.T, workers int) *team {
	m := &team{Local: newLocal(t), t: t, quorum: workers, parts: map[int64]map[int][]tables.Segment{},
		contributors: map[int64][]int{}, clocks: make([]uint64, workers)}
	m.change.L = &m.mu
	return m
}

// worker is the Stepper of one member of the team.
type worker struct {
	*team
	rank   int
	before func(what string, n int64) error // called before each PushStep and PushClock; nil: nothing
	spoil  func(segs []tables.Segment)      // changes what was pulled; nil: nothing
}

func (m *worker) Pull(ctx context.Context, segs []tables.Segment) error {
	err := m.Local.Pull(ctx, segs)
	if m.spoil != nil {
		m.spoil(segs)
	}
	return err
}

func (m *worker) PushIdle(ctx context.Context, step int64, read []rowraft.Position) (tables.StepResult, error) {
	return m.PushStep(ctx, step, read, nil)
}

func (m *worker) PushStep(ctx context.Context, step int64, read []rowraft.Position,
	segs []tables.Segment) (tables.StepResult, error) {
	if m.before != nil {
		if err := m.before("step", step); err != nil {
			return tables.StepResult{}, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if step > m.closed {
		if m.parts[step] == nil {
			m.parts[step] = map[int][]tables.Segment{}
		}
		m.parts[step][m.rank] = slices.Clone(segs)
		m.closeLocked(ctx)
		m.change.Broadcast() // a test may wait for a part
	}
	stop := context.AfterFunc(ctx, m.wake)
	defer stop()
	for step > m.closed {
		if ctx.Err() != nil {
			return tables.StepResult{}, ctx.Err()
		}
		m.change.Wait()
	}
	if !slices.Contains(m.contributors[step], m.rank) {
		return tables.StepResult{Late: 1, Next: m.closed + 1, Rest: segs}, nil
	}
	return tables.StepResult{Next: step + 1}, nil
}

// closeLocked closes the steps that enough workers have pushed.
func (m *team) closeLocked(ctx context.Context) {
	for len(m.parts[m.closed+1]) >= m.quorum {
		m.closed++
		parts := m.parts[m.closed]
		sums := map[rowraft.TableID]map[rowraft.Key][]float32{}
		var out []tables.Segment
		for rank := range m.clocks {
			if _, ok := parts[rank]; ok {
				m.contributors[m.closed] = append(m.contributors[m.closed], rank)
			}
			for _, s := range parts[rank] {
				if i := slices.IndexFunc(out, func(o tables.Segment) bool { return o.Table == s.Table }); i >= 0 &&
					out[i].LR != s.LR {
					m.t.Errorf("step %d: table %d with the rates %v and %v", m.closed, s.Table, out[i].LR, s.LR)
				}
				at := slices.IndexFunc(out, func(o tables.Segment) bool { return o.Table == s.Table })
				if at < 0 {
					at, sums[s.Table] = len(out), map[rowraft.Key][]float32{}
					out = append(out, tables.Segment{Table: s.Table, Dim: s.Dim, LR: s.LR})
				}
				for i, key := range s.Keys {
					if sums[s.Table][key] == nil {
						sums[s.Table][key] = make([]float32, s.Dim)
						out[at].Keys = append(out[at].Keys, key)
					}
					for d, g := range s.Values[i*s.Dim:][:s.Dim] {
						sums[s.Table][key][d] += g
					}
				}
			}
		}
		for i := range out {
			s := &out[i]
			slices.Sort(s.Keys)
			for _, key := range s.Keys {
				for _, g := range sums[s.Table][key] {
					s.Values = append(s.Values, g/float32(len(parts)))
				}
			}
		}
		if err := m.Push(ctx, out); err != nil {
			panic(err)
		}
		m.change.Broadcast()
	}
}

// wake makes every waiting worker check again.
func (m *team) wake() {
	m.mu.Lock() // a worker that has looked, and not begun to wait, would miss it
	defer m.mu.Unlock()
	m.change.Broadcast()
}

func (m *worker) PushClock(ctx context.Context, clock uint64, read []rowraft.Position, segs []tables.Segment) error {
	if m.before != nil {
		if err := m.before("clock", int64(clock)); err != nil {
			return err
		}
	}
	if err := m.Push(ctx, segs); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clocks[m.rank] = max(m.clocks[m.rank], clock)
	if clock != math.MaxUint64 {
		m.lead = max(m.lead, clock-min(slices.Min(m.clocks), clock))
	}
	m.change.Broadcast()
	return nil
}

func (m *worker) WaitClock(ctx context.Context, atLeast uint64) (uint64, error) {
	stop := context.AfterFunc(ctx, m.wake)
	defer stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	for slices.Min(m.clocks) < atLeast && ctx.Err() == nil {
		m.change.Wait()
	}
	slowest := slices.Min(m.clocks)
	if slowest < atLeast {
		// The client's last result may be an error of an election.
		return slowest, rowraft.Errorf(rowraft.CodeNoLeader, "the slowest is at %d", slowest)
	}
	return slowest, nil
}

// train runs all workers and returns their results; change may change configuration and
// tables of each.
func (m *team) train(t *testing.T, cfg Config, change func(*Config, *worker)) []*report.Result {
	t.Helper()
	results := make([]*report.Result, len(m.clocks))
	var all sync.WaitGroup
	for rank := range results {
		all.Go(func() {
			cfg, w := cfg, &worker{team: m, rank: rank}
			cfg.Trainers, cfg.Rank = len(results), &rank
			if change != nil {
				change(&cfg, w)
			}
			j, err := NewJob(t.Context(), cfg, w, nil)
			if err != nil {
				t.Error(err)
				return
			}
			if results[rank], err = j.Run(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return results
}

func (m *team) audit(t *testing.T) []float32 {
	t.Helper()
	a := m.Schemas()[2]
	keys, err := m.KeyPerShard(t.Context(), a.ID)
	if err != nil {
		t.Fatal(err)
	}
	row := tables.Segment{Table: a.ID, Dim: a.Dim, Keys: keys[:1], Values: make([]float32, a.Dim)}
	if err := m.Local.Pull(t.Context(), []tables.Segment{row}); err != nil {
		t.Fatal(err)
	}
	return row.Values
}

func modeConfig(mode string, steps int64, inFlight int) Config {
	cfg := tinyConfig(steps, inFlight)
	cfg.Mode, cfg.Audit = mode, true
	return cfg
}

// n workers in sync, with batches of b each, learn what one learns with batches of n·b: the mean of means is the
// mean. Equal seeds give equal bits.
func TestSyncIsOneLargeBatch(t *testing.T) {
	const workers = 3
	small := modeConfig(Sync, 12, 0)
	small.Audit = false
	run := func() (*team, []*report.Result) {
		m := newTeam(t, workers)
		return m, m.train(t, small, nil)
	}
	a, results := run()
	b, _ := run()
	if !slices.Equal(bits(a.Local), bits(b.Local)) {
		t.Error("two runs with one seed differ")
	}
	large := small
	large.Mode, large.Batch = Async, workers*small.Batch
	one := newLocal(t)
	want := mustRun(t, large, one, nil)
	for _, r := range results {
		if r.Steps != 12 || r.JobSteps != 12 || r.PushesAcknowledged != 12 || r.BatchesLate != 0 {
			t.Errorf("trainer %d: %+v, want 12 steps", r.Rank, r)
		}
		if d := math.Abs(float64(r.LogLoss - want.LogLoss)); d > 1e-4 {
			t.Errorf("trainer %d: log loss %v, in one process %v", r.Rank, r.LogLoss, want.LogLoss)
		}
	}
}

// Workers whose data ends before that of others continue with empty pushes, so that no worker waits for them; the
// audit rows count the steps to which each has contributed a batch.
func TestSyncEndsTogether(t *testing.T) {
	for _, inFlight := range []int{0, 3} {
		m := newTeam(t, 4)
		cfg := modeConfig(Sync, 0, inFlight)
		cfg.Generator.Examples = 290 // 73, 73, 72 and 72 of 24 a batch: 4, 4, 3 and 3 batches
		cfg.Batch = 24
		results := m.train(t, cfg, nil)
		for rank, want := range []int64{4, 4, 3, 3} {
			r := results[rank]
			if r.Steps != want || r.PushesAcknowledged != want || r.JobSteps != 4 {
				t.Errorf("in_flight %d, trainer %d: %+v, want %d batches in 4 steps", inFlight, rank, r, want)
			}
			if got := m.audit(t)[rank]; got != float32(want) {
				t.Errorf("in_flight %d, trainer %d: the audit row says %v, want %d", inFlight, rank, got, want)
			}
		}
	}
}

// A batch that is not finite is an empty push of its step.
func TestSyncGoesOnWithoutABadBatch(t *testing.T) {
	for _, inFlight := range []int{0, 2} {
		m := newTeam(t, 2)
		pulls := 0
		results := m.train(t, modeConfig(Sync, 8, inFlight), func(_ *Config, w *worker) {
			if w.rank == 1 {
				w.spoil = func(segs []tables.Segment) {
					if pulls++; pulls == 4 {
						segs[0].Values[0] = float32(math.NaN())
					}
				}
			}
		})
		if r := results[1]; r.BatchesSkipped != 1 || r.PushesSent != 7 || r.PushesAcknowledged != 7 || r.JobSteps != 8 {
			t.Errorf("in_flight %d: the worker with a bad batch: %+v", inFlight, r)
		}
		if r := results[0]; r.PushesAcknowledged != 8 || !slices.Equal(m.audit(t), []float32{8, 7}) {
			t.Errorf("in_flight %d: the other worker: %+v; audit rows %v, want 8 and 7", inFlight, r, m.audit(t))
		}
	}
}

// Two of three close a step. The third learns that it is late, continues with the others' step, and ends with them.
func TestQuorumGoesOnWithoutAWorker(t *testing.T) {
	m := newTeam(t, 3)
	m.quorum = 2
	cfg := modeConfig(Sync, 20, 0)
	cfg.Audit, cfg.Quorum = false, 0.6
	// By the steps of the job, or parts disagree.
	cfg.Dense.Schedule = &tableconf.Schedule{Kind: tableconf.Linear, Steps: 20}
	results := m.train(t, cfg, func(_ *Config, w *worker) {
		if w.rank != 2 {
			return
		}
		w.before = func(_ string, step int64) error {
			if step > 1 && step <= 10 { // until the others have closed it and four more
				m.mu.Lock()
				defer m.mu.Unlock()
				for m.closed < step+4 {
					m.change.Wait()
				}
			}
			return nil
		}
	})
	for _, r := range results { // one of the others is late, too, when it is the third
		if r.JobSteps != 20 || r.PushesSent != r.PushesAcknowledged+r.BatchesLate || r.PushesUnknown != 0 {
			t.Errorf("trainer %d: %+v, want the end with the others, and no batch forgotten", r.Rank, r)
		}
	}
	if r := results[2]; r.BatchesLate < 1 || r.Steps >= 20 {
		t.Errorf("the slow trainer: %+v, want late batches", r)
	}
}

func TestAStepThatFailsEndsTheRun(t *testing.T) {
	for _, mode := range []string{Sync, SSP} {
		for _, inFlight := range []int{0, 3} {
			m := newTeam(t, 1)
			w := &worker{team: m, before: func(_ string, n int64) error {
				if n == 4 {
					return rowraft.Errorf(rowraft.CodeNotMember, "gone")
				}
				return nil
			}}
			r, err := newJob(t, modeConfig(mode, 50, inFlight), w, nil).Run(t.Context())
			if rowraft.CodeOf(err) != rowraft.CodeNotMember || r.PushesAcknowledged != 3 || r.PushesUnknown != 1 ||
				r.PushesSent != 4 {
				t.Errorf("mode %s, in_flight %d: %+v, %v, want NotMember after 3 steps", mode, inFlight, r, err)
			}
		}
	}
}

// No worker gets more than k batches ahead of the slowest; one that ends holds no other.
func TestSSPBoundsTheLead(t *testing.T) {
	for _, k := range []int{0, 1, 3} {
		for _, inFlight := range []int{0, 3} {
			m := newTeam(t, 3)
			cfg := modeConfig(SSP, 12, inFlight)
			cfg.Staleness = k
			results := m.train(t, cfg, func(c *Config, w *worker) {
				c.Steps += int64(4 * w.rank)
				if w.rank == 0 { // the slowest waits until the others have to
					w.before = func(_ string, clock int64) error {
						m.mu.Lock()
						defer m.mu.Unlock()
						for clock > 0 && clock <= 12 && (m.clocks[1] < uint64(clock)+uint64(k) ||
							m.clocks[2] < uint64(clock)+uint64(k)) {
							m.change.Wait()
						}
						return nil
					}
				}
			})
			if want := uint64(k) + 1; m.lead != want {
				t.Errorf("k %d, in_flight %d: a push was %d ahead of the slowest, want %d", k, inFlight, m.lead, want)
			}
			for rank, r := range results {
				if want := int64(12 + 4*rank); r.PushesAcknowledged != want || m.audit(t)[rank] != float32(want) {
					t.Errorf("k %d, in_flight %d, trainer %d: %+v, audit %v, want %d batches", k, inFlight, rank, r,
						m.audit(t), want)
				}
			}
		}
	}
}

// A worker that waits for a slower one can be paused: the batch that it has read is not trained.
func TestSSPIsPausedWhileItWaits(t *testing.T) {
	for _, inFlight := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			m := newTeam(t, 2)
			cfg := modeConfig(SSP, 20, inFlight)
			cfg.Staleness, cfg.Trainers, cfg.Rank = 2, 2, new(int)
			j := newJob(t, cfg, &worker{team: m}, nil)
			done := make(chan error, 1)
			go func() {
				_, err := j.Run(t.Context())
				done <- err
			}()
			synctest.Wait() // for the clock of the other
			var s *state.State
			s, release, err := j.Pause(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if s.Step != 3 || s.Acknowledged != 3 || s.Positions[0].Offset != 3*int64(cfg.Batch) {
				t.Errorf("in_flight %d: paused with %+v, want 3 steps", inFlight, s)
			}
			release()
			m.mu.Lock()
			m.clocks[1] = math.MaxUint64
			m.mu.Unlock()
			m.change.Broadcast()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// A job of one worker waits for no other; tables in a process have one worker.
func TestStepsOfAWorkerAlone(t *testing.T) {
	want, cfg := newLocal(t), tinyConfig(9, 0)
	mustRun(t, cfg, want, nil)
	for _, mode := range []string{Sync, SSP} {
		l := newLocal(t)
		cfg := cfg
		cfg.Mode = mode
		if r := mustRun(t, cfg, l, nil); r.PushesAcknowledged != 9 || !slices.Equal(bits(l), bits(want)) {
			t.Errorf("mode %s alone: %+v, or other bits than async", mode, r)
		}
		cfg.Trainers = 2
		if _, err := NewJob(t.Context(), cfg, newLocal(t), nil); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument ||
			!strings.Contains(err.Error(), "one worker") {
			t.Errorf("mode %s: two workers on tables in a process: %v", mode, err)
		}
	}
}
