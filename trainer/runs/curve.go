package runs

import (
	"math"
	"slices"
	"sort"

	"github.com/rowraft/rowraft/trainer/report"
)

// curvePoints is how many points a curve of a page has at most.
const curvePoints = 300

// Sample is the state of a run at a time: all of its trainers together.
type Sample struct {
	Seconds             float64 // since the run began
	Batches, Examples   float64 // sums over all trainers, those before a resume included
	Loss, AUC           float64 // means of the trainers that train; NaN if none has a value
	Accuracy, Stale     float64
	ExamplesPerSecond   float64 // mean of the last samples; NaN of the first one
	Waiting             float64 // share of the time, likewise
	trained, wait, busy float64
}

// series is what one process contributes to the curves.
type series struct {
	start, end  float64 // seconds since the run began
	base, count Point   // the first and the last point
	points      []Point // at their times since the run began
}

// Curve returns the course of a run in at most so many samples. The samples of several processes are those of
// a grid of times, between whose points it interpolates.
func (r *Run) Curve(most int) []Sample {
	all, times := r.series()
	if len(all) > 1 && len(times) > 0 {
		first, last := times[0], times[len(times)-1]
		n := min(most, len(times))
		times = times[:n]
		for i := range times {
			times[i] = first + (last-first)*float64(i)/float64(max(n-1, 1))
		}
	}
	times = spread(times, most)
	out := make([]Sample, len(times))
	for i, t := range times {
		out[i] = sampleAt(all, t)
		if i == 0 {
			out[0].ExamplesPerSecond, out[0].Waiting = math.NaN(), math.NaN()
			continue
		}
		a, b := &out[max(i-rateSamples(len(times)), 0)], &out[i]
		b.ExamplesPerSecond = (b.trained - a.trained) / (b.Seconds - a.Seconds)
		b.Waiting = min(max((b.wait-a.wait)/(b.busy-a.busy), 0), 1)
	}
	return out
}

// rateSamples returns over how many samples a rate is the mean: single batches differ too much.
func rateSamples(n int) int { return max(n/25, 1) }

// series returns the processes that have points, and the times of all points, ascending, each once.
func (r *Run) series() (all []series, times []float64) {
	began := r.Started()
	for _, p := range r.Processes {
		if len(p.Points) == 0 {
			continue
		}
		from := duration(p.Head.Started.Sub(began).Seconds()).Seconds()
		s := series{points: slices.Clone(p.Points)}
		for i := range s.points {
			t := from + duration(float64(s.points[i].Seconds)).Seconds()
			if i > 0 { // a clock may have been set back
				t = max(t, float64(s.points[i-1].Seconds))
			}
			s.points[i].Seconds = report.Number(t)
			times = append(times, t)
		}
		s.base, s.count = s.points[0], s.points[len(s.points)-1]
		s.start, s.end = float64(s.base.Seconds), float64(s.count.Seconds)
		all = append(all, s)
	}
	slices.Sort(times)
	return all, slices.Compact(times)
}

// spread returns at most so many of times: evenly by their places, with the first and the last.
func spread(times []float64, most int) []float64 {
	n := len(times)
	if n <= most {
		return times
	}
	out := make([]float64, most)
	for i := range out {
		out[i] = times[i*(n-1)/(most-1)]
	}
	return out
}

// sampleAt returns the state at a time, without rates.
func sampleAt(all []series, t float64) Sample {
	s := Sample{Seconds: t, Loss: math.NaN(), AUC: math.NaN(), Accuracy: math.NaN(), Stale: math.NaN()}
	var loss, auc, accuracy, stale mean
	base := Point{Step: math.MaxInt64}
	for i := range all {
		f := &all[i]
		if f.base.Step < base.Step {
			base = f.base
		}
		at := f.at(t)
		s.Batches += at.step
		s.trained += at.examples
		s.wait += at.waiting
		s.busy += min(max(t-f.start, 0), f.end-f.start)
		if t >= f.start && t <= f.end {
			loss.add(at.loss)
			auc.add(at.auc)
			accuracy.add(at.accuracy)
			stale.add(at.stale)
		}
	}
	s.Batches += float64(base.Step)
	s.Examples = s.trained + float64(base.Examples)
	s.Loss, s.AUC, s.Accuracy, s.Stale = loss.value(), auc.value(), accuracy.value(), stale.value()
	return s
}

// progress is a point between two others. Counters are since the process began.
type progress struct{ step, examples, waiting, loss, auc, accuracy, stale float64 }

// at returns the progress at a time; the first or the last one outside of the times of the process.
func (f *series) at(t float64) progress {
	i := sort.Search(len(f.points), func(i int) bool { return float64(f.points[i].Seconds) >= t })
	hi := f.points[min(i, len(f.points)-1)]
	lo := f.points[max(min(i, len(f.points)-1)-1, 0)]
	share := 1.0
	if d := float64(hi.Seconds - lo.Seconds); d > 0 {
		share = min(max((t-float64(lo.Seconds))/d, 0), 1)
	}
	between := func(a, b float64) float64 {
		if math.IsNaN(a) {
			return b
		}
		return a + share*(b-a)
	}
	return progress{
		step:     between(float64(lo.Step), float64(hi.Step)) - float64(f.base.Step),
		examples: between(float64(lo.Examples), float64(hi.Examples)) - float64(f.base.Examples),
		waiting:  between(float64(lo.Waiting), float64(hi.Waiting)) - float64(f.base.Waiting),
		loss:     between(float64(lo.Loss), float64(hi.Loss)), auc: between(float64(lo.AUC), float64(hi.AUC)),
		accuracy: between(float64(lo.Accuracy), float64(hi.Accuracy)),
		stale:    between(float64(lo.Stale), float64(hi.Stale)),
	}
}

// mean is the mean of the numbers that are finite.
type mean struct{ sum, n float64 }

func (m *mean) add(v float64) {
	if !math.IsNaN(v) && !math.IsInf(v, 0) {
		m.sum, m.n = m.sum+v, m.n+1
	}
}

func (m *mean) value() float64 { return m.sum / m.n } // 0/0 is NaN

// HeldSample is a score of the held-out examples at a time of the run.
type HeldSample struct {
	Seconds, Batches, Examples                float64
	AUC, LogLoss, Accuracy, RMSE, Calibration float64
}

// HeldCurve returns the scores of the held-out examples, the one after the training last.
func (r *Run) HeldCurve() []HeldSample {
	all, _ := r.series()
	var out []HeldSample
	add := func(t float64, h *report.Held) {
		s := sampleAt(all, t)
		out = append(out, HeldSample{Seconds: t, Batches: s.Batches, Examples: s.Examples, AUC: float64(h.AUC),
			LogLoss: float64(h.LogLoss), Accuracy: float64(h.Accuracy), RMSE: float64(h.RMSE),
			Calibration: float64(h.Calibration)})
	}
	began := r.Started()
	for _, p := range r.Processes {
		from := duration(p.Head.Started.Sub(began).Seconds()).Seconds()
		for i := range p.Held {
			h := &p.Held[i]
			add(from+duration(float64(h.Seconds)).Seconds(), &h.Held)
		}
	}
	slices.SortStableFunc(out, func(a, b HeldSample) int {
		if a.Seconds < b.Seconds {
			return -1
		}
		return 1
	})
	if result := r.Result(); result != nil && result.HeldExamples > 0 {
		add(r.trainedFor(), report.NewHeld(result.Steps, result))
	}
	return out
}

// trainedFor returns the seconds from the begin of the run to its last point.
func (r *Run) trainedFor() float64 {
	_, times := r.series()
	if len(times) == 0 {
		return 0
	}
	return times[len(times)-1]
}

// Totals returns the batches and examples of all trainers of a run, without those before a resume.
func (r *Run) Totals() (batches, examples int64) {
	all, _ := r.series()
	for i := range all {
		batches += all[i].count.Step - all[i].base.Step
		examples += all[i].count.Examples - all[i].base.Examples
	}
	return batches, examples
}
