package trainer

import (
	"context"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/trainer/tableconf"
	"github.com/rowraft/rowraft/trainer/tables"
)

func TestScheduleRefusals(t *testing.T) {
	for want, s := range map[string]tableconf.Schedule{
		"kind":            {Kind: "polynomial", Steps: 1},
		"warmup":          {Kind: tableconf.Constant, Warmup: -1},
		"no meaning":      {Kind: tableconf.Constant, Steps: 3},
		"steps is 0":      {Kind: tableconf.Linear},
		"end is 2":        {Kind: tableconf.Cosine, Steps: 1, End: 2},
		"decay 1":         {Kind: tableconf.Exponential, Steps: 1, Decay: 1},
		"decay has":       {Kind: tableconf.Linear, Steps: 1, Decay: 0.5},
		"end is -1":       {Kind: tableconf.Linear, Steps: 1, End: -1},
		"decay 0":         {Kind: tableconf.Exponential, Steps: 1},
		"steps is -2":     {Kind: tableconf.Exponential, Steps: -2, Decay: 0.5},
		"the steps until": {Kind: tableconf.Cosine},
	} {
		c := twoPasses(1, 0)
		c.Embeddings.LR, c.Embeddings.Schedule = 1, &s
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q in it", s, err, want)
		}
	}
}

// rated records the learning rates of pushes.
type rated struct {
	tables.Tables
	rates [][2]float32
}

func (r *rated) Push(ctx context.Context, segs []tables.Segment) error {
	r.rates = append(r.rates, [2]float32{segs[0].LR, segs[1].LR})
	return r.Tables.Push(ctx, segs)
}

// TestPushesHaveTheRateOfTheirStep: for embeddings and dense weights, from the first step on, and in a resumed run
// from the step after its last.
func TestPushesHaveTheRateOfTheirStep(t *testing.T) {
	r := &rated{Tables: newLocal(t)}
	config := func(steps int64) Config {
		c := twoPasses(steps, 0)
		c.Embeddings.Schedule = &tableconf.Schedule{Kind: tableconf.Linear, Warmup: 3, Steps: 9}
		c.Dense.Schedule = &tableconf.Schedule{Kind: tableconf.Exponential, Steps: 4, Decay: 0.5}
		return c
	}
	first := newJob(t, config(7), r, nil)
	if _, err := first.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, release, err := first.Pause(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release()
	other := config(20)
	other.Dense.Schedule.Decay = 0.25
	if err := newJob(t, other, newLocal(t), nil).Resume(through(t, s)); err == nil {
		t.Error("a run went on with another schedule")
	}
	second := newJob(t, config(20), r, nil)
	if err := second.Resume(through(t, s)); err != nil {
		t.Fatal(err)
	}
	if _, err := second.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(r.rates) != 20 {
		t.Fatalf("%d pushes, want 20", len(r.rates))
	}
	c := config(20)
	for i, got := range r.rates {
		step := int64(i + 1)
		if want := [2]float32{c.Embeddings.Schedule.Rate(c.Embeddings.LR, step),
			c.Dense.Schedule.Rate(c.Dense.LR, step)}; got != want {
			t.Errorf("push of step %d has learning rates %v, want %v", step, got, want)
		}
	}
}
