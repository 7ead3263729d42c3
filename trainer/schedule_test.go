package trainer

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/trainer/tables"
)

// TestScheduleRates checks the equations in the comment of ScheduleConfig with those of
// package math, and that a rate is never 0.
func TestScheduleRates(t *testing.T) {
	const lr, w, s = float32(0.4), 5, 1000
	for _, tc := range []struct {
		schedule ScheduleConfig
		want     func(u float64) float64 // after the warmup
	}{
		{ScheduleConfig{Kind: Constant, Warmup: w}, func(float64) float64 { return 0.4 }},
		{ScheduleConfig{Kind: Linear, Warmup: w, Steps: s, End: 0.1},
			func(u float64) float64 { return 0.1 + 0.3*(1-min(u/s, 1)) }},
		{ScheduleConfig{Kind: Linear, Warmup: w, Steps: s}, func(u float64) float64 { return 0.4 * (1 - min(u/s, 1)) }},
		{ScheduleConfig{Kind: Cosine, Warmup: w, Steps: s, End: 0.1},
			func(u float64) float64 { return 0.1 + 0.3*(1+math.Cos(math.Pi*min(u/s, 1)))/2 }},
		{ScheduleConfig{Kind: Cosine, Warmup: w, Steps: s},
			func(u float64) float64 { return 0.4 * (1 + math.Cos(math.Pi*min(u/s, 1))) / 2 }},
		{ScheduleConfig{Kind: Exponential, Warmup: w, Steps: s, Decay: 0.3},
			func(u float64) float64 { return 0.4 * math.Pow(0.3, u/s) }},
		{ScheduleConfig{Kind: Exponential, Warmup: w, Steps: s, Decay: 0.3, End: 0.2},
			func(u float64) float64 { return max(0.2, 0.4*math.Pow(0.3, u/s)) }},
	} {
		if err := tc.schedule.validate(lr); err != nil {
			t.Error(err)
		}
		for step := int64(1); step < 5000; step++ {
			want := tc.want(float64(step - 1 - w))
			if step <= w {
				want = 0.4 * float64(step) / w
			}
			got := tc.schedule.Rate(lr, step)
			if math.Abs(float64(got)-want) > 3e-7*want+0x1p-60 || got <= 0 {
				t.Fatalf("%+v, step %d: %v, want %v", tc.schedule, step, got, want)
			}
		}
		if got := tc.schedule.Rate(lr, math.MaxInt64); !(got > 0) {
			t.Errorf("%+v, a step far away: %v", tc.schedule, got)
		}
	}
	if got := (*ScheduleConfig)(nil).Rate(lr, 7); got != 0 {
		t.Errorf("without a schedule %v, want 0: the rate of the table", got)
	}
}

// TestScheduleBits: every processor must compute these numbers, which were recorded once.
func TestScheduleBits(t *testing.T) {
	cosine := ScheduleConfig{Kind: Cosine, Steps: 1000, End: 0.01}
	exponential := ScheduleConfig{Kind: Exponential, Steps: 700, Decay: 0.9}
	sum := uint64(0)
	for step := int64(1); step <= 1200; step++ {
		for _, s := range []*ScheduleConfig{&cosine, &exponential} {
			sum = sum*31 + uint64(math.Float32bits(s.Rate(0.3, step)))
		}
	}
	if want := uint64(0xdb3c64450b20d1b3); sum != want {
		t.Errorf("%#x, want %#x", sum, want)
	}
}

func TestScheduleRefusals(t *testing.T) {
	for want, s := range map[string]ScheduleConfig{
		"kind":            {Kind: "polynomial", Steps: 1},
		"warmup":          {Kind: Constant, Warmup: -1},
		"no meaning":      {Kind: Constant, Steps: 3},
		"steps is 0":      {Kind: Linear},
		"end is 2":        {Kind: Cosine, Steps: 1, End: 2},
		"decay 1":         {Kind: Exponential, Steps: 1, Decay: 1},
		"decay has":       {Kind: Linear, Steps: 1, Decay: 0.5},
		"end is -1":       {Kind: Linear, Steps: 1, End: -1},
		"decay 0":         {Kind: Exponential, Steps: 1},
		"steps is -2":     {Kind: Exponential, Steps: -2, Decay: 0.5},
		"the steps until": {Kind: Cosine},
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
		c.Embeddings.Schedule = &ScheduleConfig{Kind: Linear, Warmup: 3, Steps: 9}
		c.Dense.Schedule = &ScheduleConfig{Kind: Exponential, Steps: 4, Decay: 0.5}
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
