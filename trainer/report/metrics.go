package report

import (
	"cmp"
	"math"
	"slices"
	"strconv"
)

// Score is the quality of predictions on a set of examples.
type Score struct {
	Examples int
	AUC      float64 // NaN if all labels are equal
	LogLoss  float64 // nats
	// Calibration is nil without examples.
	Calibration *Calibration
}

// Predictions are predictions with their labels.
type Predictions []scored

// Add adds a prediction.
func (s *Predictions) Add(p float32, positive bool) { *s = append(*s, scored{p, positive}) }

// scored is one prediction with its label.
type scored struct {
	p   float32
	pos bool
}

// Score computes the exact AUC, with ties counted half, and the log loss with predictions limited to [1e-7, 1 −
// 1e-7]. It sorts the examples.
func (examples Predictions) Score() Score {
	s := Score{Examples: len(examples), AUC: math.NaN()}
	if len(examples) == 0 {
		s.LogLoss = math.NaN()
		return s
	}
	for _, e := range examples {
		p := min(max(float64(e.p), 1e-7), 1-1e-7)
		if e.pos {
			s.LogLoss -= math.Log(p)
		} else {
			s.LogLoss -= math.Log1p(-p)
		}
	}
	s.LogLoss /= float64(len(examples))
	slices.SortFunc(examples, func(a, b scored) int { return cmp.Compare(a.p, b.p) })
	s.Calibration = examples.calibrate()
	var below, wins, positives float64 // negatives below; pairs won
	for i := 0; i < len(examples); {
		var pos, neg float64
		j := i
		for ; j < len(examples) && examples[j].p == examples[i].p; j++ {
			if examples[j].pos {
				pos++
			} else {
				neg++
			}
		}
		wins += pos * (below + neg/2)
		below += neg
		positives += pos
		i = j
	}
	if positives > 0 && below > 0 {
		s.AUC = wins / (positives * below)
	}
	return s
}

// running averages the loss and AUC of recent batches: each batch weighs `decay` times as much as the next one. The
// AUC comes from predictions sorted into bins.
type running struct {
	pos, neg [aucBins]float64
	loss     float64
	weight   float64
}

const (
	aucBins = 1024
	decay   = 0.98 // a batch weighs half after 34 more
)

func (r *running) add(predictions, labels []float32, loss float64) {
	for i := range r.pos {
		r.pos[i] *= decay
		r.neg[i] *= decay
	}
	for i, p := range predictions {
		bin := min(int(p*aucBins), aucBins-1)
		if labels[i] > 0.5 {
			r.pos[bin]++
		} else {
			r.neg[bin]++
		}
	}
	r.loss = r.loss*decay + loss
	r.weight = r.weight*decay + 1
}

// auc returns NaN while all labels are equal.
func (r *running) auc() float64 {
	var below, wins, positives float64
	for i := range r.pos {
		wins += r.pos[i] * (below + r.neg[i]/2)
		below += r.neg[i]
		positives += r.pos[i]
	}
	return wins / (positives * below)
}

func (r *running) meanLoss() float64 { return r.loss / r.weight }

// Number is a float64 that is null in JSON if it is not finite.
type Number float64

// MarshalJSON implements json.Marshaler.
func (n Number) MarshalJSON() ([]byte, error) {
	if f := float64(n); math.IsNaN(f) || math.IsInf(f, 0) {
		return []byte("null"), nil
	}
	return jsonFloat(float64(n)), nil
}

// UnmarshalJSON implements json.Unmarshaler: null is NaN.
func (n *Number) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*n = Number(math.NaN())
		return nil
	}
	f, err := strconv.ParseFloat(string(text), 64)
	*n = Number(f)
	return err
}
