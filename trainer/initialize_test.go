package trainer

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tableconf"
	"github.com/rowraft/rowraft/trainer/tables"
)

// placed is tinyConfig with dense weights initialized as these entries configure.
func placed(steps int64, p ...ParameterConfig) Config {
	cfg := tinyConfig(steps, 0)
	cfg.Parameters = p
	return cfg
}

// denseOf returns the present dense weights of a job.
func denseOf(t testing.TB, j *Job) []float32 {
	t.Helper()
	w := j.newWork()
	if err := j.tables.Pull(t.Context(), j.layout.Segments(nil, w.delta)); err != nil {
		t.Fatal(err)
	}
	j.layout.Weights(w.flat, w.delta)
	return w.flat
}

// Initial weights of every origin have the ranges of the model, and training moves them by the same steps.
func TestWhereWeightsAreInitialized(t *testing.T) {
	for _, tc := range []struct {
		name   string
		params []ParameterConfig
		tables int
		same   bool // as from the seed
	}{
		{"each by a worker", []ParameterConfig{{Name: "*", Init: InitWorker}}, 2, true},
		{"each at the servers", []ParameterConfig{{Name: "*", Init: InitServer}}, 11, false},
		{"biases by a worker, one layer at the servers", []ParameterConfig{{Name: "*.bias", Init: InitWorker},
			{Name: "bottom.*", Init: InitServer}}, 4, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, cfg := newLocal(t), placed(20, tc.params...)
			j, err := NewJob(t.Context(), cfg, l, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(l.Schemas()) != tc.tables {
				t.Errorf("%d tables, want %d", len(l.Schemas()), tc.tables)
			}
			first := denseOf(t, j)
			seeded := make([]float32, len(first))
			models.Initial(seeded, j.layout.Params, cfg.Seed)
			if got := slices.Equal(first, seeded); got != tc.same {
				t.Errorf("the first weights are those of the seed: %v, want %v", got, tc.same)
			}
			for i, p := range j.layout.Params {
				limit, some := float32(0), false
				if p.FanIn+p.FanOut > 0 {
					limit = float32(math.Sqrt(6 / float64(p.FanIn+p.FanOut)))
				}
				for _, v := range first[j.layout.Offsets[i]:][:p.Size()] {
					if v < -limit || v > limit {
						t.Fatalf("%s has a weight of %v, want within ±%v", p.Name, v, limit)
					}
					some = some || v != 0
				}
				if some != (limit > 0) {
					t.Errorf("%s: weights that are not 0: %v", p.Name, some)
				}
			}
			r, err := j.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			plain := mustRun(t, placed(20), newLocal(t), nil)
			if tc.same && math.Abs(float64(r.LogLoss-plain.LogLoss)) > 1e-4 {
				t.Errorf("log loss %v, with weights from the seed %v", r.LogLoss, plain.LogLoss)
			}
			if slices.Equal(denseOf(t, j), first) {
				t.Error("training has moved no weight")
			}
		})
	}
}

// Trainers that start in any order and concurrently see the weights of one of them, complete, even if an earlier
// trainer 0 died while it wrote and a late assign of it is under way.
func TestOneWorkersWeightsWin(t *testing.T) {
	for range 5 {
		l := newLocal(t)
		config := func(rank int, seed uint64) Config {
			cfg := placed(1, ParameterConfig{Name: "*", Init: InitWorker})
			cfg.Trainers, cfg.Rank, cfg.Seed = 3, &rank, seed
			return cfg
		}
		// The first trainer 0, with other values, stops after two tensors.
		dying := &cutOff{Local: l, after: 2}
		if _, err := NewJob(t.Context(), config(0, 7), dying, nil); !errors.Is(err, errCut) {
			t.Fatalf("NewJob = %v, want the injected error", err)
		}
		var all sync.WaitGroup
		got := make([][]float32, 3)
		waited := make(chan struct{})
		var once sync.Once
		for _, rank := range []int{2, 1} {
			all.Go(func() {
				defer once.Do(func() { close(waited) }) // whatever became of it
				j, err := NewJob(t.Context(), config(rank, 7), l, func(e report.Event) {
					if strings.Contains(e.Message, "waiting for trainer 0") {
						once.Do(func() { close(waited) })
					}
				})
				if err != nil {
					t.Error(err)
					return
				}
				got[rank] = denseOf(t, j)
			})
		}
		<-waited
		j, err := NewJob(t.Context(), config(0, 7), l, nil)
		if err != nil {
			t.Fatal(err)
		}
		got[0] = denseOf(t, j)
		all.Wait()
		seeded := make([]float32, len(got[0]))
		models.Initial(seeded, j.layout.Params, 7)
		if !slices.Equal(got[0], seeded) {
			t.Fatal("the first weights are not those of the trainer 0 that finished")
		}
		if !slices.Equal(got[0], got[1]) || !slices.Equal(got[0], got[2]) {
			t.Fatal("trainers have seen different first weights")
		}
		if err := dying.last.Assign(t.Context(), dying.segs); rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
			t.Fatalf("the first trainer 0 assigns again: %v, want SessionExpired", err)
		}
		// A trainer 0 that returns writes nothing: training has begun.
		mustRun(t, config(0, 7), l, nil)
		moved := denseOf(t, j)
		if again, err := NewJob(t.Context(), config(0, 7), l, nil); err != nil ||
			!slices.Equal(denseOf(t, again), moved) || slices.Equal(moved, got[0]) {
			t.Fatalf("a trainer 0 that comes back wrote first weights again, %v", err)
		}
	}
}

var errCut = errors.New("cut off")

// cutOff is Local with claims that fail after some assigns.
type cutOff struct {
	*tables.Local
	after int
	last  tables.Assigner
	segs  []tables.Segment
}

func (c *cutOff) Claim(ctx context.Context, name string) (tables.Assigner, error) {
	a, err := c.Local.Claim(ctx, name)
	c.last = a
	return c, err
}

func (c *cutOff) Assign(ctx context.Context, segs []tables.Segment) error {
	if c.after == 0 {
		c.segs = []tables.Segment{{Table: segs[0].Table, Dim: segs[0].Dim, Keys: slices.Clone(segs[0].Keys),
			Values: slices.Clone(segs[0].Values)}}
		return errCut
	}
	c.after--
	segs = slices.Clone(segs)
	segs[0].Values = slices.Clone(segs[0].Values)
	for i := range segs[0].Values {
		segs[0].Values[i]++
	}
	return c.last.Assign(ctx, segs)
}

func (c *cutOff) Close() error { return nil }

// readOnly is Tables to which no worker can write initial weights.
type readOnly struct{ tables.Tables }

func TestWhatParametersAreRefused(t *testing.T) {
	for _, tc := range []struct {
		name string
		p    ParameterConfig
		want string
	}{
		{"init", ParameterConfig{Name: "*", Init: "later"}, "want seed, server or worker"},
		{"placement", ParameterConfig{Name: "*", Placement: "moon"}, "placement"},
		{"pattern", ParameterConfig{Name: "[", Init: InitWorker}, "a pattern with *"},
		{"no name", ParameterConfig{Init: InitWorker}, "a pattern with *"},
		{"no such parameter", ParameterConfig{Name: "conv1.*"},
			"the model has no parameter conv1.*; it has bottom.0.weights"},
		{"tables that cannot", ParameterConfig{Name: "*", Init: InitWorker}, "a trainer cannot write these tables"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := NewJob(t.Context(), placed(1, tc.p), readOnly{newLocal(t)}, nil)
			if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("NewJob = %v, want InvalidArgument with %q", err, tc.want)
			}
		})
	}
}

// A trainer that waits for initial weights stops when its context ends.
func TestWaitingForWeightsEnds(t *testing.T) {
	rank := 1
	cfg := placed(1, ParameterConfig{Name: "*", Init: InitWorker})
	cfg.Trainers, cfg.Rank = 2, &rank
	ctx, cancel := context.WithCancel(t.Context())
	_, err := NewJob(ctx, cfg, newLocal(t), func(report.Event) { cancel() })
	if rowraft.CodeOf(err) != rowraft.CodeDeadline || !strings.Contains(err.Error(), "trainer 0 has not initialized") {
		t.Errorf("NewJob = %v, want a deadline that names trainer 0", err)
	}
}

// A trainer of rank 1 that starts when no other trains writes the first weights: trainer 0 is gone. One that has waited
// for its patience says what to do.
func TestFirstWeightsWithoutTrainer0(t *testing.T) {
	rank, first := 1, &jobs.Member{First: true}
	cfg := placed(1, ParameterConfig{Name: "*", Init: InitWorker})
	cfg.Trainers, cfg.Rank, cfg.Patience = 2, &rank, time.Second
	l := newLocal(t)
	if _, err := NewJob(t.Context(), cfg, l, nil); rowraft.CodeOf(err) != rowraft.CodeDeadline ||
		!strings.Contains(err.Error(), "start this trainer again") {
		t.Errorf("without trainer 0: %v, want a deadline that says what to do", err)
	}
	cfg.member = first
	if _, err := NewJob(t.Context(), cfg, l, nil); err != nil {
		t.Errorf("the first trainer, of rank 1: %v", err)
	}
	cfg.member = nil
	if _, err := NewJob(t.Context(), cfg, l, nil); err != nil {
		t.Errorf("the next one: %v", err)
	}
}

// A trainer whose claim another one takes while it writes waits for the weights of that one.
func TestAFencedInitializerWaits(t *testing.T) {
	l := newLocal(t)
	cfg := placed(1, ParameterConfig{Name: "*", Init: InitWorker})
	if _, err := NewJob(t.Context(), cfg, &fencing{Local: l, t: t, cfg: cfg}, nil); err != nil {
		t.Fatal(err)
	}
}

// fencing is Local on which another trainer starts after a claim, and writes the weights.
type fencing struct {
	*tables.Local
	t   *testing.T
	cfg Config
}

func (f *fencing) Claim(ctx context.Context, name string) (tables.Assigner, error) {
	a, err := f.Local.Claim(ctx, name)
	return &fenced{a, f}, err
}

type fenced struct {
	tables.Assigner
	*fencing
}

func (f *fenced) Close() error { return f.Assigner.Close() }

func (f *fenced) Assign(ctx context.Context, segs []tables.Segment) error {
	newJob(f.t, f.cfg, f.Local, nil)
	return f.Assigner.Assign(ctx, segs)
}

// The table of a single parameter is a dense table like the others: its rate follows the schedule, and mode geo has
// a copy of it.
func TestTablesOfOneParameter(t *testing.T) {
	cfg := placed(20, ParameterConfig{Name: "top.*", Init: InitServer})
	cfg.Dense.Schedule = &tableconf.Schedule{Kind: "linear", Steps: 10, End: 0.001}
	cfg.Mode, cfg.Geo.Every = Geo, 5
	l := newLocal(t)
	j, err := NewJob(t.Context(), cfg, l, nil)
	if err != nil {
		t.Fatal(err)
	}
	segs := j.layout.Segments(nil, j.newWork().delta)
	j.setRates(segs, 5)
	for _, s := range segs {
		if s.LR == 0 || s.LR != segs[0].LR {
			t.Errorf("table %d has the rate %v at step 5, the first %v", s.Table, s.LR, segs[0].LR)
		}
	}
	first := denseOf(t, j)
	if _, err := j.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	last := denseOf(t, j)
	for i, p := range j.layout.Params {
		if from, n := j.layout.Offsets[i], p.Size(); slices.Equal(first[from:from+n], last[from:from+n]) {
			t.Errorf("%s has not moved", p.Name)
		}
	}
}
