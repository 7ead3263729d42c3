package mnist

import (
	"math"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/cmd/rowraft-bench/figures"
	"github.com/rowraft/rowraft/internal/cli"
)

func TestJudge(t *testing.T) {
	good := result{FirstLoss: 2.31, Accuracy: 0.981, Steps: 10, PushesAcknowledged: 10}
	for _, tc := range []struct {
		name   string
		change func(*result)
		want   string
	}{
		{"all is well", func(*result) {}, ""},
		{"first loss", func(r *result) { r.FirstLoss = 2.5 }, "first loss, distance from ln 10"},
		{"no first loss", func(r *result) { r.FirstLoss = math.NaN() }, "first loss, distance from ln 10"},
		{"accuracy", func(r *result) { r.Accuracy = 0.9799 }, "accuracy on held-out digits"},
		{"a push is missing", func(r *result) { r.PushesAcknowledged = 9 }, "pushes acknowledged"},
		{"nothing was trained", func(r *result) { r.Steps, r.PushesAcknowledged = 0, 0 }, "pushes acknowledged"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := config{bar: 0.98, tilt: 0.05, epochs: 3}
			r := good
			tc.change(&r)
			var out strings.Builder
			err := c.judge(&r, figures.NewPrinter(&out, cli.FormatTable))
			if tc.want == "" {
				if err != nil || strings.Contains(out.String(), "MISSED") {
					t.Errorf("judge = %v\n%s", err, &out)
				}
				return
			}
			if err == nil || err.Error() != "missed: "+tc.want || strings.Count(out.String(), "MISSED") != 1 {
				t.Errorf("judge = %v, want missed: %s\n%s", err, tc.want, &out)
			}
		})
	}
}
