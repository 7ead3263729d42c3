package report

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// predictions returns predictions with labels: each pair is a prediction and 0 or 1.
func predictions(pairs ...float32) (all Predictions) {
	for i := 0; i < len(pairs); i += 2 {
		all.Add(pairs[i], pairs[i+1] > 0.5)
	}
	return all
}

func TestCalibration(t *testing.T) {
	var twenty Predictions
	for i := range 20 { // predictions 0, 0.05, …; label 1 from 0.5 on
		twenty.Add(float32(i)/20, i >= 10)
	}
	for _, tc := range []struct {
		name         string
		of           Predictions
		ratio, error float64
		bins         string // examples, mean prediction, mean label
	}{
		{"one bin an example", predictions(0.2, 0, 0.6, 1), 0.8, 0.3, "1 0.200 0.000, 1 0.600 1.000"},
		{"twice as many clicks as there are", predictions(0.5, 0, 0.5, 0, 0.5, 0, 0.5, 1), 2, 0.25,
			"1 0.500 0.250, 1 0.500 0.250, 1 0.500 0.250, 1 0.500 0.250"},
		// The mean prediction is 0.475, the mean label 0.5. The mean predictions of the bins are 0.025, 0.125, …, 0.925, so
		// that the error is the mean of 0.025, 0.125, …, 0.425 and of 0.475, 0.375, …, 0.075.
		{"two examples a bin", twenty, 0.95, 0.25, "2 0.025 0.000, 2 0.125 0.000, 2 0.225 0.000, " +
			"2 0.325 0.000, 2 0.425 0.000, 2 0.525 1.000, 2 0.625 1.000, 2 0.725 1.000, 2 0.825 1.000, 2 0.925 1.000"},
		{"no label is 1", predictions(0.5, 0, 0.5, 0), math.Inf(1), 0.5, "1 0.500 0.000, 1 0.500 0.000"},
	} {
		c := tc.of.Score().Calibration
		bins := ""
		for i, b := range c.Bins {
			if i > 0 {
				bins += ", "
			}
			bins += fmt.Sprintf("%d %.3f %.3f", b.Examples, b.Prediction, b.Label)
		}
		if math.Abs(float64(c.Ratio)-tc.ratio) > 1e-6 && float64(c.Ratio) != tc.ratio ||
			math.Abs(float64(c.Error)-tc.error) > 1e-6 || bins != tc.bins {
			t.Errorf("%s: ratio %v, error %v, bins %s; want %v, %v, %s", tc.name, c.Ratio, c.Error, bins, tc.ratio, tc.error,
				tc.bins)
		}
	}
}

// The bins have equal counts, whatever the predictions, and neither the order of the examples nor that of equal
// predictions changes a number.
func TestCalibrationOfAnyOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 9, 10, 11, 19, 1003} {
		var all Predictions
		for range n {
			all.Add(float32(random.IntN(4))/4, random.IntN(3) == 0) // many equal predictions
		}
		first := fmt.Sprint(*all.Score().Calibration)
		least, most := n, 0
		for _, b := range all.Score().Calibration.Bins {
			least, most = min(least, b.Examples), max(most, b.Examples)
		}
		if most-least > 1 {
			t.Errorf("%d examples: bins of %d to %d", n, least, most)
		}
		for range 3 {
			random.Shuffle(n, func(i, j int) { all[i], all[j] = all[j], all[i] })
			if again := fmt.Sprint(*all.Score().Calibration); again != first {
				t.Errorf("%d examples in another order: %s, want %s", n, again, first)
			}
		}
	}
}
