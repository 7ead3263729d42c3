package report

import "math"

// calibrationBins is the number of bins of a calibration.
const calibrationBins = 10

// Calibration compares predictions with labels.
type Calibration struct {
	// Ratio is the mean prediction divided by the mean label: 1 is right, 1.1 predicts 10 % too many clicks (He et al.,
	// Practical Lessons from Predicting Clicks on Ads at Facebook, ADKDD 2014). Null if the mean label is 0.
	Ratio Number `json:"ratio"`
	// Error is the expected calibration error: the mean, weighted by examples, of |mean prediction − share of label 1| of
	// the bins (Naeini, Cooper, Hauskrecht, Obtaining Well Calibrated Probabilities Using Bayesian Binning, AAAI 2015),
	// with bins of equal counts. Null for labels that are numbers.
	Error Number `json:"error"`
	// Bins have equal counts of examples, by ascending prediction; there are at most 10.
	Bins []CalibrationBin `json:"bins,omitempty"`
}

// CalibrationBin is a share of the examples whose predictions are near each other.
type CalibrationBin struct {
	Examples   int    `json:"examples"`
	Prediction Number `json:"prediction"` // mean
	Label      Number `json:"label"`      // mean; equal predictions on both sides of a border share their labels evenly
}

// calibrate computes the calibration of predictions that are sorted ascending.
func (examples Predictions) calibrate() *Calibration {
	n := len(examples)
	bins := min(n, calibrationBins)
	sums := make([]struct{ p, label float64 }, bins)
	end := func(b int) int { return int(int64(n) * int64(b+1) / int64(bins)) } // behind the last example of bin b
	b := 0
	for i := 0; i < n; {
		positives, j := 0, i
		for ; j < n && examples[j].p == examples[i].p; j++ {
			if examples[j].pos {
				positives++
			}
		}
		share := float64(positives) / float64(j-i)
		for i < j {
			for end(b) <= i {
				b++
			}
			count := float64(min(end(b), j) - i)
			sums[b].p += count * float64(examples[i].p)
			sums[b].label += count * share
			i += int(count)
		}
	}
	c := &Calibration{}
	p, label, from := 0.0, 0.0, 0
	for b, s := range sums {
		count := end(b) - from
		from += count
		p, label = p+s.p, label+s.label
		c.Error += Number(math.Abs(s.p-s.label) / float64(n))
		c.Bins = append(c.Bins, CalibrationBin{count, Number(s.p / float64(count)), Number(s.label / float64(count))})
	}
	c.Ratio = Number(p / label)
	return c
}
