package tableconf

import (
	"math"
	"testing"
)

// TestScheduleRates checks the equations in the comment of Schedule with those of
// package math, and that a rate is never 0.
func TestScheduleRates(t *testing.T) {
	const lr, w, s = float32(0.4), 5, 1000
	for _, tc := range []struct {
		schedule Schedule
		want     func(u float64) float64 // after the warmup
	}{
		{Schedule{Kind: Constant, Warmup: w}, func(float64) float64 { return 0.4 }},
		{Schedule{Kind: Linear, Warmup: w, Steps: s, End: 0.1},
			func(u float64) float64 { return 0.1 + 0.3*(1-min(u/s, 1)) }},
		{Schedule{Kind: Linear, Warmup: w, Steps: s}, func(u float64) float64 { return 0.4 * (1 - min(u/s, 1)) }},
		{Schedule{Kind: Cosine, Warmup: w, Steps: s, End: 0.1},
			func(u float64) float64 { return 0.1 + 0.3*(1+math.Cos(math.Pi*min(u/s, 1)))/2 }},
		{Schedule{Kind: Cosine, Warmup: w, Steps: s},
			func(u float64) float64 { return 0.4 * (1 + math.Cos(math.Pi*min(u/s, 1))) / 2 }},
		{Schedule{Kind: Exponential, Warmup: w, Steps: s, Decay: 0.3},
			func(u float64) float64 { return 0.4 * math.Pow(0.3, u/s) }},
		{Schedule{Kind: Exponential, Warmup: w, Steps: s, Decay: 0.3, End: 0.2},
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
	if got := (*Schedule)(nil).Rate(lr, 7); got != 0 {
		t.Errorf("without a schedule %v, want 0: the rate of the table", got)
	}
}

// TestScheduleBits: every processor must compute these numbers, which were recorded once.
func TestScheduleBits(t *testing.T) {
	cosine := Schedule{Kind: Cosine, Steps: 1000, End: 0.01}
	exponential := Schedule{Kind: Exponential, Steps: 700, Decay: 0.9}
	sum := uint64(0)
	for step := int64(1); step <= 1200; step++ {
		for _, s := range []*Schedule{&cosine, &exponential} {
			sum = sum*31 + uint64(math.Float32bits(s.Rate(0.3, step)))
		}
	}
	if want := uint64(0xdb3c64450b20d1b3); sum != want {
		t.Errorf("%#x, want %#x", sum, want)
	}
}
