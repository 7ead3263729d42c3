package runs

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Difference is a setting that differs between runs.
type Difference struct {
	Name   string   // in the job's file: embeddings.lr
	Values []string // one for each run, as in the file; "" if the run has none
}

// Compare returns the settings in which runs differ, sorted by name. The settings of the process, which differ between
// the trainers of one job, are not compared.
func Compare(all []*Run) (out []Difference) {
	flat := make([]map[string]string, len(all))
	names := make(map[string]bool)
	for i, r := range all {
		flat[i] = Flatten(r.Head().Settings)
		for name := range flat[i] {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if name == "rank" {
			continue
		}
		d := Difference{Name: name}
		for i := range flat {
			d.Values = append(d.Values, flat[i][name])
		}
		if len(slices.Compact(slices.Clone(d.Values))) > 1 {
			out = append(out, d)
		}
	}
	return out
}

// Flatten returns the settings of a job by their full names, without those that are not set.
func Flatten(settings map[string]any) map[string]string {
	out := make(map[string]string)
	flatten(out, "", settings)
	return out
}

func flatten(out map[string]string, prefix string, tree map[string]any) {
	for name, v := range tree {
		switch v := v.(type) {
		case map[string]any:
			flatten(out, prefix+name+".", v)
		case string:
			if v != "" {
				out[prefix+name] = v
			}
		case nil:
		case []any:
			if len(v) > 0 {
				out[prefix+name] = jsonText(v)
			}
		default:
			out[prefix+name] = jsonText(v)
		}
	}
}

func jsonText(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(text)
}

// Measure is a number of each run, by which people compare them.
type Measure struct {
	Name   string
	Values []float64 // NaN if the run has none
	Format string    // as for package fmt
	Best   int       // index of the best value, −1 if there is none or it has no order
}

// Measures returns the scores and the speed of runs, without those that no run has.
func Measures(all []*Run) (out []Measure) {
	add := func(name, format string, order int, value func(*Run) float64) {
		m := Measure{Name: name, Format: format, Best: -1}
		any := false
		for i, r := range all {
			v := value(r)
			m.Values = append(m.Values, v)
			if math.IsNaN(v) {
				continue
			}
			any = true
			if order != 0 && (m.Best < 0 || float64(order)*(v-m.Values[m.Best]) > 0) {
				m.Best = i
			}
		}
		if len(all) < 2 {
			m.Best = -1
		}
		if any {
			out = append(out, m)
		}
	}
	held := func(value func(*HeldSample) float64) func(*Run) float64 {
		return func(r *Run) float64 {
			if c := r.HeldCurve(); len(c) > 0 {
				return value(&c[len(c)-1])
			}
			return math.NaN()
		}
	}
	add("held-out AUC", "%.4f", 1, held(func(h *HeldSample) float64 { return h.AUC }))
	add("held-out log loss", "%.4f", -1, held(func(h *HeldSample) float64 { return h.LogLoss }))
	add("held-out accuracy", "%.4f", 1, held(func(h *HeldSample) float64 { return h.Accuracy }))
	add("held-out RMSE", "%.4f", -1, held(func(h *HeldSample) float64 { return h.RMSE }))
	add("held-out calibration", "%.3f", 0, held(func(h *HeldSample) float64 { return h.Calibration }))
	add("best score", "%.4f", 0, func(r *Run) float64 {
		if result := r.Result(); result != nil && result.BestScore != nil {
			return float64(result.BestScore.Value)
		}
		return math.NaN()
	})
	add("best possible AUC", "%.4f", 0, func(r *Run) float64 {
		if result := r.Result(); result != nil && result.HeldExamples > 0 {
			return float64(result.BestAUC)
		}
		return math.NaN()
	})
	last := func(value func(*Sample) float64) func(*Run) float64 {
		return func(r *Run) float64 {
			if c := r.Curve(curvePoints); len(c) > 0 {
				return value(&c[len(c)-1])
			}
			return math.NaN()
		}
	}
	add("training loss", "%.4f", -1, last(func(s *Sample) float64 { return s.Loss }))
	add("training AUC", "%.4f", 1, last(func(s *Sample) float64 { return s.AUC }))
	add("batches", "%.0f", 0, func(r *Run) float64 { n, _ := r.Totals(); return float64(n) })
	add("examples", "%.0f", 0, func(r *Run) float64 { _, n := r.Totals(); return float64(n) })
	add("examples/s", "%.0f", 1, func(r *Run) float64 {
		_, n := r.Totals()
		return float64(n) / r.trainedFor()
	})
	add("seconds", "%.1f", 0, func(r *Run) float64 { return r.Duration().Seconds() })
	return out
}
