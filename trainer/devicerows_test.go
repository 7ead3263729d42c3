package trainer

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/trainer/accel"
	"github.com/rowraft/rowraft/trainer/copies"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tables"
)

// onDevice is tinyConfig with copies on the device.
func onDevice(steps int64, inFlight, staleness int) Config {
	cfg := tinyConfig(steps, inFlight)
	cfg.Cache = copies.Config{Bytes: "1MiB", On: copies.Device, Staleness: copies.Limit{Steps: staleness}}
	return cfg
}

// Without staleness, a run with copies on the device has the bits of one whose rows come from the host with each batch,
// on the same graph.
func TestDeviceRowsHaveTheBitsOfTheGraph(t *testing.T) {
	run := func(cfg Config) []uint32 {
		l := newLocal(t)
		cfg.Cache.Staleness = copies.Limit{}
		j, err := NewJob(t.Context(), cfg, l, nil)
		if err != nil {
			t.Fatal(err)
		}
		backend, _, err := accel.Open(accel.CPU)
		if err != nil {
			t.Fatal(err)
		}
		m := &cfg.Model
		j.model, err = models.NewDLRMGraph(backend, models.DLRMGraphConfig{Batch: cfg.Batch, Dense: 2, Categorical: 3,
			Dim: m.Dim, Bottom: m.Bottom, Top: m.Top})
		if err != nil {
			t.Fatal(err)
		}
		r, err := j.Run(t.Context())
		if err != nil || r.BatchesSkipped > 0 || cfg.Cache.On == copies.Device && (r.RowsReused > 0 || r.RowsPulled == 0) {
			t.Fatalf("%+v, %v", r, err)
		}
		return bits(l)
	}
	want := run(tinyConfig(40, 0))
	if got := run(onDevice(40, 0, 0)); !slices.Equal(got, want) {
		t.Error("the rows of a run with copies on the device differ")
	}
}

// With staleness, rows of hot keys are uploaded once in several batches, and the model learns as well.
func TestDeviceRowsThatAreReused(t *testing.T) {
	run := func(cfg Config) *report.Result {
		cfg.Generator.Held, cfg.Batch, cfg.Seed = 4000, 128, 3
		return mustRun(t, cfg, newLocal(t), nil)
	}
	want := run(tinyConfig(400, 2))
	got, same := run(onDevice(400, 2, 4)), run(onDevice(400, 0, 4))
	t.Logf("AUC %.4f, with copies %.4f and %.4f; %d of %d rows reused", want.AUC, got.AUC, same.AUC, got.RowsReused,
		got.RowsReused+got.RowsPulled)
	if got.RowsReused < got.RowsPulled || got.ReusedSteps > 4 {
		t.Errorf("%d rows reused, %d pulled, %v steps old on average: want more reused, of at most 4 steps", got.RowsReused,
			got.RowsPulled, got.ReusedSteps)
	}
	for _, r := range []*report.Result{got, same} {
		if !(math.Abs(float64(r.AUC-want.AUC)) < 0.01) {
			t.Errorf("AUC %.4f, without copies %.4f", r.AUC, want.AUC)
		}
	}
	if again := run(onDevice(400, 0, 4)); again.LogLoss != same.LogLoss {
		t.Errorf("two runs with one seed have the losses %v and %v", again.LogLoss, same.LogLoss)
	}
}

// A row that is not finite spoils its batch, which is skipped, and not the place that it would take on the device.
func TestDeviceRowsThatAreNotFinite(t *testing.T) {
	cfg := onDevice(60, 0, 8)
	s := &strict{Local: newLocal(t), t: t}
	s.spoil = func(pull int, segs []tables.Segment) {
		if pull == 20 || pull == 21 {
			for _, seg := range segs {
				if seg.Dim == cfg.Model.Dim {
					seg.Values[0] = float32(math.NaN())
				}
			}
		}
	}
	r := mustRun(t, cfg, s, nil)
	if r.BatchesSkipped != 2 || r.Steps != 60 || !(r.LogLoss < 1) {
		t.Errorf("%d batches skipped of %d, log loss %v; want 2 of 60", r.BatchesSkipped, r.Steps, r.LogLoss)
	}
}

func TestDeviceRowsAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"another kind of model": {func(c *Config) { c.Model.Kind = "deepfm" }, "models of kind dlrm"},
		"several threads":       {func(c *Config) { c.Threads = 2 }, "threads is 2"},
	} {
		cfg := onDevice(1, 0, 0)
		tc.change(&cfg)
		if _, err := NewJob(t.Context(), cfg, newLocal(t), nil); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
