package trainer

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tables"
)

// staleness returns the staleness of each batch, computed from the means in events.
type staleness struct {
	steps, weight float64
	each          []int
}

func (s *staleness) observe(e report.Event) {
	if e.Event != report.EventStep {
		return
	}
	const decay = 0.98 // of the means in events
	weight := s.weight*decay + 1
	steps := float64(e.StalenessSteps) * weight
	s.each = append(s.each, int(math.Round(steps-s.steps*decay)))
	s.steps, s.weight = steps, weight
}

func TestStalenessOfPushesAhead(t *testing.T) {
	var got staleness
	mustRun(t, tinyConfig(4, 0), newLocal(t), got.observe)
	if !slices.Equal(got.each, []int{0, 0, 0, 0}) {
		t.Errorf("in_flight 0: %v, want no staleness", got.each)
	}

	s := &strict{Local: newLocal(t), t: t, inFlight: 2, hold: make(chan struct{}), held: func() {}}
	s.spoil = func(pull int, _ []tables.Segment) {
		if pull == 4 { // no push has ended before
			close(s.hold)
		}
	}
	got = staleness{}
	cfg := tinyConfig(4, 2)
	no := false
	cfg.Evaluate = &no
	mustRun(t, cfg, s, got.observe)
	if !slices.Equal(got.each, []int{0, 1, 2, 3}) {
		t.Errorf("in_flight 2, nothing acknowledged before the fourth batch was read: %v, want 0 1 2 3", got.each)
	}
}

// A batch that is skipped has ended, too.
func TestStalenessAfterASkippedBatch(t *testing.T) {
	s := &strict{Local: newLocal(t), t: t, spoil: func(pull int, segs []tables.Segment) {
		if pull == 2 {
			segs[0].Values[0] = float32(math.NaN())
		}
	}}
	var last report.Event
	mustRun(t, tinyConfig(5, 0), s, func(e report.Event) {
		if e.Event == report.EventStep {
			last = e
		}
	})
	if last.StalenessSteps != 0 || last.BatchesSkipped != 1 {
		t.Errorf("%+v, want a skipped batch and no staleness", last)
	}
}

func TestStalenessOfModeGeo(t *testing.T) {
	var got staleness
	cfg := tinyConfig(7, 0)
	cfg.Mode, cfg.Geo.Every = Geo, 3
	mustRun(t, cfg, newLocal(t), got.observe)
	if !slices.Equal(got.each, []int{0, 0, 0, 1, 0, 1, 2}) { // rounds after 1, 2, 4 and 7
		t.Errorf("%v, want the batches since a round", got.each)
	}
}

// A worker of mode ssp that waits for another reports how far it is ahead of it.
func TestStalenessOfModeSSP(t *testing.T) {
	m := newTeam(t, 2)
	cfg := modeConfig(SSP, 3, 0)
	cfg.Staleness, cfg.Trainers = 2, 2
	var got staleness
	ahead := make(chan struct{})
	var all sync.WaitGroup
	for rank := range 2 {
		cfg, w := cfg, &worker{team: m, rank: rank}
		cfg.Rank = &rank
		observe := func(report.Event) {}
		if rank == 0 {
			observe = func(e report.Event) {
				if got.observe(e); e.Event == report.EventStep && e.Step == 3 {
					close(ahead)
				}
			}
		} else {
			w.before = func(string, int64) error { <-ahead; return nil }
		}
		j, err := NewJob(t.Context(), cfg, w, observe)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			if _, err := j.Run(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if !slices.Equal(got.each, []int{0, 1, 2}) {
		t.Errorf("%v, want 0 1 2 before a trainer that is paused", got.each)
	}
}

// The time that the loop waits for a push is reported while it waits, also to the registry.
func TestWaitingIsTold(t *testing.T) {
	s := &strict{Local: newLocal(t), t: t, inFlight: 1, hold: make(chan struct{})}
	cfg := tinyConfig(2, 0)
	j, err := NewJob(t.Context(), cfg, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.held = func() {
		j.beat()
		before := j.Now()
		for j.Now().WaitingSeconds < before.WaitingSeconds+0.01 { // ends as time goes by
		}
		if e := j.Now(); e.InFlight != 1 || e.Step != 1 || e.PushesSent != 1 {
			t.Errorf("during the first push: %+v", e)
		}
		if b := j.beat(); !(b.Waiting > 0.999 && b.Waiting <= 1) || b.StalenessSteps != 0 {
			t.Errorf("beat %+v, want one that waited all the time", b)
		}
		close(s.hold)
	}
	if _, err := j.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	at := j.Now().WaitingSeconds
	if e := j.Now(); e.InFlight != 0 || e.WaitingSeconds != at {
		t.Errorf("after the end: %+v, want nothing that waits", e)
	}
}

func TestNotFiniteIsCounted(t *testing.T) {
	inf, nan := float32(math.Inf(-1)), float32(math.NaN())
	cfg := tinyConfig(1, 0)
	for _, tc := range []struct {
		dtype string
		r     models.Result
		rows  []float32
		want  report.Skipped
		text  string
	}{
		{"float32", models.Result{}, []float32{0, math.MaxFloat32}, report.Skipped{}, ""},
		{"float32", models.Result{Loss: math.NaN()}, nil, report.Skipped{Loss: true}, "the loss is"},
		{"float32", models.Result{Loss: math.Inf(1), ParamGrads: []float32{nan, 2}}, []float32{inf, 1, nan},
			report.Skipped{Loss: true, Rows: 2, Dense: 1},
			"the loss, 2 of 3 gradients of embeddings, 1 of 2 gradients of dense weights are"},
		{"bfloat16", models.Result{ParamGrads: []float32{3.3e38, -math.MaxFloat32}}, nil, report.Skipped{Dense: 1},
			"1 of 2 gradients of dense weights is"}, // rounds to infinity
	} {
		cfg.DType = tc.dtype
		got, bad := cfg.notFinite(&tc.r, tc.rows)
		if got != tc.want || bad != (tc.text != "") {
			t.Errorf("%s %+v, rows %v: %+v, %v, want %+v", tc.dtype, tc.r, tc.rows, got, bad, tc.want)
		}
		if bad && got.Describe(len(tc.rows), len(tc.r.ParamGrads)) != tc.text {
			t.Errorf("%q, want %q", got.Describe(len(tc.rows), len(tc.r.ParamGrads)), tc.text)
		}
	}
}

// The event of a skipped batch has its position in the data.
func TestSkippedBatchIsNamed(t *testing.T) {
	cfg := tinyConfig(0, 0)
	cfg.Generator.Examples, cfg.Generator.Held = 100, 0
	cfg.Trainers, cfg.Rank, cfg.Epochs = 2, new(int), 2
	*cfg.Rank = 1
	s := &strict{Local: newLocal(t), t: t, spoil: func(pull int, segs []tables.Segment) {
		if pull == 4 { // the second batch of the second epoch, 18 of its 50 examples
			segs[0].Values[0] = float32(math.NaN())
		}
	}}
	var got *report.Event
	mustRun(t, cfg, s, func(e report.Event) {
		if e.Event == report.EventSkipped {
			got = &e
		}
	})
	if got == nil || got.Skipped == nil {
		t.Fatal("no event of a skipped batch")
	}
	got.Skipped.Rows, got.Skipped.Dense = min(got.Skipped.Rows, 1), min(got.Skipped.Dense, 1)
	if want := (report.Skipped{Epoch: 1, Split: 1, Offset: 32, Examples: 18, First: 65, Loss: true, Rows: 1,
		Dense: 1}); *got.Skipped != want {
		t.Errorf("%+v, want %+v", *got.Skipped, want)
	}
	if !strings.Contains(got.Message, "epoch 1, split 1, offset 32: 18 examples, the first is number 65 of") {
		t.Errorf("message %q", got.Message)
	}
	text, err := json.Marshal(got)
	if err != nil || !strings.Contains(string(text),
		`"skipped":{"epoch":1,"split":1,"offset":32,"examples":18,"first":65,"loss":true`) {
		t.Errorf("%s, %v", text, err)
	}
}
