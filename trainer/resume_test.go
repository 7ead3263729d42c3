package trainer

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/member"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/state"
	"github.com/rowraft/rowraft/trainer/tables"
)

// twoPasses has 7 batches a pass, the last of them a small one.
func twoPasses(steps int64, inFlight int) Config {
	cfg := tinyConfig(steps, inFlight)
	cfg.Generator.Examples = 200
	return cfg
}

// through writes s and reads it back.
func through(t testing.TB, s *state.State) *state.State {
	t.Helper()
	var b bytes.Buffer
	if _, err := s.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	s, err := state.Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newJob(t testing.TB, cfg Config, tables tables.Tables, observe report.Observer) *Job {
	t.Helper()
	j, err := NewJob(t.Context(), cfg, tables, observe)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// A run that stops after k steps and resumes from its state has the bits of one that never stopped; k includes the
// ends of passes.
func TestARunGoesOnExactly(t *testing.T) {
	want := newLocal(t)
	straight := mustRun(t, twoPasses(20, 0), want, nil)
	for _, k := range []int64{1, 6, 7, 8, 13, 14, 19} {
		got := newLocal(t)
		first := newJob(t, twoPasses(k, 0), got, nil)
		if _, err := first.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		s, release, err := first.Pause(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		release()
		if !s.Ended || s.Step != k || s.Acknowledged != k {
			t.Errorf("after %d steps: %+v", k, s)
		}
		second := newJob(t, twoPasses(20, 0), got, nil)
		if err := second.Resume(through(t, s)); err != nil {
			t.Fatal(err)
		}
		r, err := second.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(bits(got), bits(want)) {
			t.Errorf("stopped after %d of 20 steps: other rows than without", k)
		}
		if r.Steps != 20 || r.ResumedAtStep != k || r.Examples != straight.Examples || r.PushesAcknowledged != 20 ||
			r.AUC != straight.AUC {
			t.Errorf("stopped after %d of 20 steps: %+v, without %+v", k, r, straight)
		}
	}
}

// A resumed run has the initial dense weights of its state, not those that the binary would compute now.
func TestDenseWeightsAreThoseOfTheState(t *testing.T) {
	j := newJob(t, twoPasses(20, 0), newLocal(t), nil)
	s := through(t, j.state(false))
	s.Tensors[0].Values[0] = 42
	if err := j.Resume(s); err != nil {
		t.Fatal(err)
	}
	if j.layout.Initial[0] != 42 {
		t.Errorf("the first weight is %v, the state has 42", j.layout.Initial[0])
	}
}

// pushed records the batches whose push ended, by their keys.
type pushed struct {
	*strict
	mu      sync.Mutex
	batches []string
}

func (p *pushed) Push(ctx context.Context, segs []tables.Segment) error {
	if err := p.strict.Push(ctx, segs); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.batches = append(p.batches, fmt.Sprint(segs[0].Keys))
	return nil
}

func (p *pushed) sorted() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := slices.Clone(p.batches)
	slices.Sort(s)
	return s
}

// Also in async mode a pause is a boundary: no push is under way, and every batch that was read is pushed. A run
// that stops there, or anywhere, loses no batch and trains none twice.
func TestNoBatchIsLostOrTrainedTwice(t *testing.T) {
	const steps = 40
	run := func(inFlight int) *pushed {
		return &pushed{strict: &strict{Local: newLocal(t), t: t, inFlight: inFlight}}
	}
	straight := run(3)
	mustRun(t, twoPasses(steps, 3), straight, nil)
	for _, inFlight := range []int{0, 1, 3} {
		for _, interrupted := range []bool{false, true} {
			tables := run(inFlight)
			ctx, cancel := context.WithCancel(t.Context())
			at := make(chan struct{})
			j := newJob(t, twoPasses(steps, inFlight), tables, func(e report.Event) {
				if e.Event == report.EventStep && e.Step == 11 {
					if interrupted {
						cancel()
					}
					close(at)
				}
			})
			done := make(chan error, 1)
			go func() {
				_, err := j.Run(ctx)
				done <- err
			}()
			<-at
			s, release, err := j.Pause(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			tables.strict.mu.Lock()
			if tables.pushing > 0 || int64(tables.pushes) != s.Step || s.Acknowledged != s.Step || s.Step < 11 {
				t.Errorf("in_flight %d: at the boundary %d pushes are under way and %d were begun; the state: %+v",
					inFlight, tables.pushing, tables.pushes, s)
			}
			tables.strict.mu.Unlock()
			cancel() // while it is paused
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			release()
			if int64(tables.pushes) != s.Step {
				t.Errorf("in_flight %d: %d pushes after the boundary", inFlight, int64(tables.pushes)-s.Step)
			}
			next := newJob(t, twoPasses(steps, inFlight), tables, nil)
			if err := next.Resume(through(t, s)); err != nil {
				t.Fatal(err)
			}
			if _, err := next.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got, want := tables.sorted(), straight.sorted(); !slices.Equal(got, want) {
				t.Errorf("in_flight %d, interrupted %v: %d batches, %d without the stop, or others", inFlight,
					interrupted, len(got), len(want))
			}
		}
	}
}

// A pause waits for the pushes that are under way.
func TestAPauseWaitsForPushes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tables := &strict{Local: newLocal(t), t: t, inFlight: 3, hold: make(chan struct{}), held: func() {}}
		j := newJob(t, twoPasses(20, 3), tables, nil)
		done := make(chan error, 1)
		go func() {
			_, err := j.Run(t.Context())
			done <- err
		}()
		synctest.Wait() // three pushes are held, one batch waits for its turn
		paused := make(chan *state.State, 1)
		go func() {
			s, release, err := j.Pause(t.Context())
			if err != nil {
				t.Error(err)
			}
			paused <- s
			release()
		}()
		synctest.Wait()
		select {
		case s := <-paused:
			t.Errorf("a state at step %d while pushes are under way", s.Step)
		default:
		}
		close(tables.hold)
		if s := <-paused; s.Acknowledged != s.Step {
			t.Errorf("%d pushes acknowledged at step %d", s.Acknowledged, s.Step)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A run continues after its pause, and a withdrawn pause does not stop it.
func TestAPauseEnds(t *testing.T) {
	for _, inFlight := range []int{0, 2} {
		tables := &strict{Local: newLocal(t), t: t, inFlight: inFlight}
		started := make(chan struct{})
		var once sync.Once
		j := newJob(t, twoPasses(200, inFlight), tables, func(e report.Event) {
			if e.Event == report.EventStep {
				once.Do(func() { close(started) })
			}
		})
		done := make(chan error, 1)
		go func() {
			_, err := j.Run(t.Context())
			done <- err
		}()
		<-started
		for range 5 {
			s, release, err := j.Pause(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, _, err := j.Pause(ctx); err == nil {
				t.Error("a second pause during the first, of a caller that is gone: no error")
			}
			release()
			release() // no harm
			if _, again, err := j.Pause(ctx); err == nil {
				again()
			}
			_ = s
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if tables.pushes != 200 {
			t.Errorf("in_flight %d: %d pushes, want 200", inFlight, tables.pushes)
		}
	}
}

// A run whose push failed has no state to resume from.
func TestAFailedRunHasNoState(t *testing.T) {
	for _, inFlight := range []int{0, 2} {
		failure := rowraft.Errorf(rowraft.CodeSessionExpired, "the session is gone")
		tables := &strict{Local: newLocal(t), t: t, inFlight: inFlight, fail: func(push int) error {
			if push == 5 {
				return failure
			}
			return nil
		}}
		j := newJob(t, twoPasses(20, inFlight), tables, nil)
		if _, err := j.Run(t.Context()); err == nil {
			t.Fatal("the run did not fail")
		}
		if s, _, err := j.Pause(t.Context()); err == nil || rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
			t.Errorf("in_flight %d: a state at step %d, error %v", inFlight, s.Step, err)
		}
	}
}

// A resuming run creates an empty table in place of one that was dropped after the restore, and must refuse it.
func TestResumeWantsTheTablesOfTheCheckpoint(t *testing.T) {
	cfg := twoPasses(20, 0)
	cfg.Audit = true
	j := newJob(t, cfg, newLocal(t), nil)
	all := []rowraft.Schema{j.fields.Tables[0], j.dense, j.audit}
	for i, gone := range all {
		again := gone
		again.ID++
		saved := &member.Saved{Path: "/mnt/a", State: j.state(false),
			Tables: append(slices.Delete(slices.Clone(all), i, i+1), again)}
		_, err := j.RunOn(t.Context(), nil, saved)
		if rowraft.CodeOf(err) != rowraft.CodePrecondition ||
			!strings.Contains(fmt.Sprint(err), gone.Name+" was created after") {
			t.Errorf("another %s: %v, want Precondition", gone.Name, err)
		}
	}
	if err := (&member.Saved{Tables: all}).CheckTables(j.ownTables()); err != nil {
		t.Errorf("the tables of the checkpoint: %v", err)
	}
}

func TestResumeRefusesAnotherRun(t *testing.T) {
	s := func() *state.State { return newJob(t, twoPasses(20, 0), newLocal(t), nil).state(false) }
	for name, tc := range map[string]struct {
		config func(*Config)
		state  func(*state.State)
		want   string
	}{
		"another batch":     {config: func(c *Config) { c.Batch = 16 }, want: "batch was 32"},
		"another model":     {config: func(c *Config) { c.Model.Top = []int{9} }, want: "model.Top was [8]"},
		"other data":        {config: func(c *Config) { c.Generator.Seed = 77 }, want: "generator.Seed was"},
		"another optimizer": {config: func(c *Config) { c.Dense.LR = 0.5 }, want: "dense.LR was 0.02"},
		"another job":       {config: func(c *Config) { c.Job = "other" }, want: "job ctr"},
		"another trainer":   {state: func(s *state.State) { s.Rank, s.Trainers = 1, 2 }, want: "trainer 1 of 2"},
		"share of the data": {state: func(s *state.State) { s.Positions[0].Shares = 2 }, want: "another share"},
		"a tensor too few":  {state: func(s *state.State) { s.Tensors = s.Tensors[1:] }, want: "no tensor"},
		"a tensor too many": {state: func(s *state.State) {
			s.Tensors = append(s.Tensors,
				state.Tensor{Kind: state.Weights, Name: "x"})
		}, want: "tensors, the model"},
		"a position too many": {state: func(s *state.State) { s.Positions = append(s.Positions, s.Positions[0]) },
			want: "another share"},
	} {
		cfg, st := twoPasses(20, 0), s()
		if tc.config != nil {
			tc.config(&cfg)
		}
		if tc.state != nil {
			tc.state(st)
		}
		err := newJob(t, cfg, newLocal(t), nil).Resume(st)
		if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument || !strings.Contains(fmt.Sprint(err), tc.want) {
			t.Errorf("%s: %v, want InvalidArgument with %q", name, err, tc.want)
		}
	}
	for name, config := range map[string]func(*Config){
		"more steps": func(c *Config) { c.Steps = 500 }, "more in flight": func(c *Config) { c.InFlight = new(4) },
		"no scores": func(c *Config) { no := false; c.Evaluate = &no },
	} {
		cfg := twoPasses(20, 0)
		config(&cfg)
		if err := newJob(t, cfg, newLocal(t), nil).Resume(s()); err != nil {
			t.Errorf("%s: %v, want to resume", name, err)
		}
	}
	cfg, gone := twoPasses(20, 0), s()
	gone.Positions[0].Offset = 1000
	j := newJob(t, cfg, newLocal(t), nil)
	if err := j.Resume(gone); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Run(t.Context()); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument ||
		!strings.Contains(err.Error(), "fewer than the 1000 examples") {
		t.Errorf("data that became fewer: %v", err)
	}
}
