package smoke

import (
	"math"
	"os"
	"testing"
	"time"

	"github.com/rowraft/rowraft/trainer/accel"
)

// pluginVariable names a PJRT plugin that tests may use, of any platform.
const pluginVariable = "ROWRAFT_TEST_PJRT_PLUGIN"

func TestDevices(t *testing.T) {
	for _, device := range []string{accel.CPU, accel.CUDA} {
		t.Run(device, func(t *testing.T) {
			parities := 2
			if device == accel.CUDA {
				parities = 3
				if os.Getenv(pluginVariable) == "" {
					t.Skipf("$%s names no plugin", pluginVariable)
				}
				t.Setenv(accel.PluginVariable, os.Getenv(pluginVariable))
			}
			b, found, err := accel.Open(device)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Run(b, []int{32}, time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: %+v", found.Line(), r)
			if len(r.Parity) != parities || !r.OK() || len(r.Steps) != 2 {
				t.Errorf("%+v, want %d models that are the same", r, parities)
			}
			for _, s := range r.Steps {
				if !(s.Millis > 0) || s.Rounds < 3 || !(s.ExamplesPerSecond() > 0) {
					t.Errorf("%+v", s)
				}
			}
		})
	}
}

// A number that differs, or is not one, is not the same.
func TestDifference(t *testing.T) {
	for _, tc := range []struct {
		got, want []float32
		is        float64
	}{
		{[]float32{1, -4}, []float32{1, -4}, 0},
		{[]float32{1, -3}, []float32{1, -4}, 0.25},
		{[]float32{0.5}, []float32{0}, 0.5},
		{nil, nil, 0},
	} {
		if got := difference(tc.got, tc.want); got != tc.is {
			t.Errorf("difference(%v, %v) = %v, want %v", tc.got, tc.want, got, tc.is)
		}
	}
	if d := difference([]float32{float32(math.NaN())}, []float32{1}); d == d {
		t.Errorf("a NaN differs by %v", d)
	}
	bad := Report{Parity: []Parity{{OK: true}, {OK: false}}}
	if bad.OK() {
		t.Error("a report with a model that differs is OK")
	}
}
