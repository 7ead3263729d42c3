package trainer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/state"
	"github.com/rowraft/rowraft/trainer/tableconf"
)

// meeting is the scheduler's part in a pause: it returns the greatest boundary of n trainers.
type meeting struct {
	mu     sync.Mutex
	left   int
	target int64
	all    chan struct{}
}

func newMeeting(n int) *meeting {
	m := &meeting{left: n, all: make(chan struct{})}
	if n == 0 {
		close(m.all)
	}
	return m
}

func (m *meeting) say(boundary int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.target = max(m.target, boundary)
	if m.left--; m.left == 0 {
		close(m.all)
	}
}

func (m *meeting) agree(ctx context.Context, boundary int64) (int64, error) {
	m.say(boundary)
	select {
	case <-m.all:
		return m.target, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// run is a job running in this process.
type run struct {
	t       *testing.T
	jobs    []*Job
	cancel  context.CancelFunc
	results []*report.Result
	all     sync.WaitGroup
}

// start begins to train with workers of m, from states unless they are nil. watch gets each event; it may be nil.
func (m *team) start(configs []Config, from []*state.State, watch func(rank int, e report.Event)) *run {
	m.t.Helper()
	r := &run{t: m.t, results: make([]*report.Result, len(configs))}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(m.t.Context())
	for rank, cfg := range configs {
		cfg.Trainers, cfg.Rank = len(configs), &rank
		j := newJob(m.t, cfg, &worker{team: m, rank: rank}, func(e report.Event) {
			if watch != nil {
				watch(rank, e)
			}
		})
		if from != nil {
			if err := j.Resume(through(m.t, from[rank])); err != nil {
				m.t.Fatal(err)
			}
		}
		r.jobs = append(r.jobs, j)
	}
	for rank, j := range r.jobs {
		r.all.Go(func() {
			var err error
			if r.results[rank], err = j.Run(ctx); err != nil {
				m.t.Errorf("trainer %d: %v", rank, err)
			}
		})
	}
	return r
}

// pause stops all trainers at one boundary, agreed in meet, or in a new meeting if meet is nil; the error is that
// of a trainer that cannot stop there.
func (r *run) pause(meet *meeting) (states []*state.State, release func(), err error) {
	if meet == nil {
		meet = newMeeting(len(r.jobs))
	}
	states, errs := make([]*state.State, len(r.jobs)), make([]error, len(r.jobs))
	releases := make([]func(), len(r.jobs))
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	var all sync.WaitGroup
	for rank, j := range r.jobs {
		all.Go(func() {
			said := false
			p, release, err := j.pausePoint.Request(ctx, func(ctx context.Context, boundary int64) (int64, error) {
				said = true
				return meet.agree(ctx, boundary)
			})
			if !said { // it waits for no other trainer, or has ended
				meet.say(0)
			}
			if errs[rank] = err; err != nil {
				cancel() // the others wait for it
				return
			}
			states[rank], releases[rank] = p.State, release
		})
	}
	all.Wait()
	release = func() {
		for _, f := range releases {
			if f != nil {
				f()
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		release()
		return nil, nil, err
	}
	return states, release, nil
}

// stop ends the run at its pause.
func (r *run) stop(release func()) {
	r.cancel()
	release()
	r.all.Wait()
}

// again returns a team on the same tables after a restore, which forgets steps and clocks.
func (m *team) again() *team {
	next := newTeam(m.t, len(m.clocks))
	next.Local, next.quorum = m.Local, m.quorum
	return next
}

func repeat(cfg Config, n int) (out []Config) {
	for range n {
		out = append(out, cfg)
	}
	return out
}

// stopAt reports when a trainer has done so many steps, and holds it there until all have met.
func stopAt(rank int, step int64, meet *meeting) (reached chan struct{}, watch func(int, report.Event)) {
	reached = make(chan struct{})
	return reached, func(r int, e report.Event) {
		if r == rank && e.Event == report.EventStep && e.Step == step {
			close(reached)
			<-meet.all
		}
	}
}

// Sync trainers that are stopped at different steps stop behind one step of the job. A run resumed from there ends
// with the bits of a run without the stop. The third trainer has no data left at the last stop, and pushes empty
// steps.
func TestSyncGoesOnExactly(t *testing.T) {
	cfg := modeConfig(Sync, 0, 0)
	cfg.Generator.Examples, cfg.Batch, cfg.Epochs = 290, 24, 2 // 97, 97, 96: 5, 5 and 4 batches a pass
	cfg.Dense.Schedule = &tableconf.Schedule{Kind: tableconf.Linear, Steps: 20}
	const last = 10
	straight := newTeam(t, 3)
	straight.start(repeat(cfg, 3), nil, nil).all.Wait()
	for _, stop := range []int64{1, 4, 5, 7, 9, 10} {
		m := newTeam(t, 3)
		meet := newMeeting(3)
		reached, watch := stopAt(int(stop)%2, stop, meet)
		r := m.start(repeat(cfg, 3), nil, watch)
		<-reached
		states, release, err := r.pause(meet)
		if err != nil {
			t.Fatal(err)
		}
		for rank, s := range states {
			want := stop
			if rank == 2 {
				want = min(want, 8)
			}
			if s.JobStep != stop || s.Step != want {
				t.Errorf("stop at step %d: trainer %d stopped behind step %d, after %d batches", stop, rank,
					s.JobStep, s.Step)
			}
		}
		if m.closed != states[0].JobStep || len(m.parts[m.closed+1]) > 0 {
			t.Errorf("stopped at step %d: the job has closed %d steps, and has %d parts of the next one", stop,
				m.closed, len(m.parts[m.closed+1]))
		}
		r.stop(release)
		next := m.again()
		r = next.start(repeat(cfg, 3), states, nil)
		r.all.Wait()
		if !slices.Equal(bits(next.Local), bits(straight.Local)) {
			t.Errorf("stopped behind step %d of %d: other rows than without", states[0].JobStep, last)
		}
		for rank, want := range []int64{10, 10, 8} {
			if got := r.results[rank]; got.Steps != want || got.JobSteps != last && states[0].JobStep < last {
				t.Errorf("stopped behind step %d: trainer %d: %+v, want %d batches in %d steps", states[0].JobStep,
					rank, got, want, last)
			}
			if got := r.jobs[rank].state(true).JobStep; got != last {
				t.Errorf("stopped behind step %d: the next state of trainer %d is behind step %d, want %d",
					states[0].JobStep, rank, got, last)
			}
		}
		r.cancel()
	}
}

// With pushes in flight, and in every mode, all trainers stop together repeatedly; no push is lost, doubled or late
// because of that.
func TestTrainersPauseTogether(t *testing.T) {
	const workers, steps = 3, 30
	for _, mode := range []string{Async, Sync, SSP, Geo} {
		for _, inFlight := range []int{0, 3} {
			m := newTeam(t, workers)
			cfg := modeConfig(mode, steps, inFlight)
			if mode == Geo {
				cfg.Geo.Every = 4
				cfg.Embeddings.Optimizer, cfg.Dense.Optimizer = "sgd", "sgd"
			}
			meet := newMeeting(workers)
			reached, watch := stopAt(1, 2, meet)
			if mode != Sync { // a trainer that waits for no other announces nothing
				reached, watch = stopAt(1, 2, newMeeting(0))
			}
			r := m.start(repeat(cfg, workers), nil, watch)
			<-reached
			for range 5 {
				states, release, err := r.pause(meet)
				meet = nil
				if err != nil {
					t.Fatalf("mode %s, in_flight %d: %v", mode, inFlight, err)
				}
				for rank, s := range states {
					if s.Acknowledged != s.Step || mode == Sync && s.Step != states[0].Step {
						t.Errorf("mode %s, in_flight %d: trainer %d stopped at %+v, trainer 0 at step %d", mode,
							inFlight, rank, s, states[0].Step)
					}
				}
				release()
			}
			r.all.Wait()
			r.cancel()
			for rank, got := range r.results {
				if got.PushesAcknowledged != steps || got.BatchesLate != 0 || m.audit(t)[rank] != steps {
					t.Errorf("mode %s, in_flight %d: trainer %d: %+v, audit %v", mode, inFlight, rank, got, m.audit(t))
				}
			}
		}
	}
}

// Trainers that average weights they keep stop behind one round; in mode sync they resume exactly: each state has
// weights and optimizer state.
func TestTrainersThatAveragePauseTogether(t *testing.T) {
	for _, tc := range []struct {
		mode  string
		every int
	}{{Sync, 0}, {Async, 4}} {
		configs := func() []Config {
			list := ranks(t, 2, 24, tc.every)
			for i := range list {
				list[i].Mode, list[i].Dense = tc.mode, tableconf.Table{Optimizer: "adam", LR: 0.01}
			}
			return list
		}
		straight := newTeam(t, 2)
		want := straight.start(configs(), nil, nil)
		want.all.Wait()
		m := newTeam(t, 2)
		meet := newMeeting(2)
		reached, watch := stopAt(0, 9, meet)
		r := m.start(configs(), nil, watch)
		<-reached
		states, release, err := r.pause(meet)
		if err != nil {
			t.Fatalf("mode %s: %v", tc.mode, err)
		}
		r.stop(release)
		if a, b := states[0].Step, states[1].Step; tc.mode == Sync && (a != 9 || b != 9) ||
			tc.mode == Async && a/4 != b/4 {
			t.Errorf("mode %s: they stopped at steps %d and %d", tc.mode, states[0].Step, states[1].Step)
		}
		next := m.again()
		r = next.start(configs(), states, nil)
		r.all.Wait()
		for rank, got := range r.results {
			if got == nil || got.Steps != 24 {
				t.Fatalf("mode %s: trainer %d: %+v", tc.mode, rank, got)
			}
		}
		if tc.mode == Async {
			continue
		}
		if !slices.Equal(bits(next.Local), bits(straight.Local)) {
			t.Errorf("stopped behind step %d: other rows than without", states[0].Step)
		}
		for rank, j := range r.jobs {
			if !equalBits(j.hybrid.weights, want.jobs[rank].hybrid.weights) ||
				!equalBits(j.hybrid.state, want.jobs[rank].hybrid.state) {
				t.Errorf("trainer %d, stopped behind step %d: other weights, or optimizer state, than without", rank,
					states[rank].Step)
			}
		}
	}
}

// With a quorum a late worker has batches for steps behind the one at which the others stop: these are late, too,
// and hold no trainer.
func TestALateTrainerPausesWithTheOthers(t *testing.T) {
	m := newTeam(t, 3)
	m.quorum = 2
	cfg := modeConfig(Sync, 40, 3)
	cfg.Audit, cfg.Quorum = false, 0.6
	late, ended := make(chan struct{}, 1), make(chan struct{})
	r := m.start(repeat(cfg, 3), nil, func(_ int, e report.Event) {
		if e.Event == report.EventLate {
			select {
			case late <- struct{}{}:
			default:
			}
		}
	})
	go func() {
		r.all.Wait()
		close(ended)
	}()
	for range 3 {
		select {
		case <-late:
		case <-ended: // before another was late
		}
		states, release, err := r.pause(nil)
		if err != nil {
			t.Fatal(err)
		}
		for rank, s := range states {
			if s.JobStep != states[0].JobStep {
				t.Errorf("trainer %d stopped behind step %d, trainer 0 behind step %d", rank, s.JobStep,
					states[0].JobStep)
			}
		}
		release()
	}
	<-ended
	r.cancel()
	for _, got := range r.results {
		if got.JobSteps != 40 || got.PushesSent != got.PushesAcknowledged+got.BatchesLate {
			t.Errorf("trainer %d: %+v, want the end with the others", got.Rank, got)
		}
	}
}

// A trainer whose boundary is never agreed continues when the request is withdrawn, and one that the others have
// left behind reports that it cannot stop now.
func TestAPauseThatFailsHoldsNoTrainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTeam(t, 1)
		cfg := modeConfig(Sync, 30, 2)
		w := &worker{team: m}
		cfg.Trainers, cfg.Rank = 2, new(int)
		asked, hold := make(chan struct{}), make(chan struct{})
		var once sync.Once
		w.before = func(_ string, step int64) error {
			if step == 3 {
				once.Do(func() { close(asked); <-hold })
			}
			return nil
		}
		j := newJob(t, cfg, w, nil)
		done := make(chan error, 1)
		go func() {
			_, err := j.Run(t.Context())
			done <- err
		}()
		<-asked
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, _, err := j.pausePoint.Request(ctx, func(ctx context.Context, boundary int64) (int64, error) {
				if boundary != 6 { // one in the push, one in the model, one that waits for its turn, one pulled
					t.Errorf("it could stop behind step %d first, want 6", boundary)
				}
				<-ctx.Done()
				return 0, ctx.Err()
			})
			failed <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("withdrawn: %v", err)
		}
		go func() {
			_, _, err := j.pausePoint.Request(t.Context(), func(context.Context, int64) (int64, error) {
				return 6,
					nil
			})
			failed <- err
		}()
		synctest.Wait()
		m.mu.Lock()
		m.closed = 4 // without it
		m.mu.Unlock()
		close(hold)
		if err := <-failed; !errors.Is(err, jobs.ErrNotNow) {
			t.Errorf("left behind: %v, want ErrNotNow", err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}
