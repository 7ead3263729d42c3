package trainer

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tableconf"
)

// squares writes images of 16 × 16 pixels, a bright square in one of three places,
// which is the label, and returns a job that learns them.
func squares(t testing.TB, count int) Config {
	t.Helper()
	head := func(sizes ...uint32) []byte {
		b := []byte{0, 0, 8, byte(len(sizes))}
		for _, n := range sizes {
			b = binary.BigEndian.AppendUint32(b, n)
		}
		return b
	}
	images, labels := head(uint32(count), 16, 16), head(uint32(count))
	for i := range count {
		y := i * 7 % 3
		labels = append(labels, byte(y))
		pixels := make([]byte, 256)
		for p := range pixels {
			pixels[p] = byte((i*31 + p*17) % 60)
		}
		for d := range 16 {
			pixels[(5*y+d/4)*16+5*y+d%4] = 220
		}
		images = append(images, pixels...)
	}
	dir := t.TempDir()
	cfg := DefaultConfig()
	cfg.Model.Kind, cfg.Batch, cfg.InFlight, cfg.Device = "lenet", 16, new(0), "cpu"
	cfg.Dense = tableconf.Table{Optimizer: "adam", LR: 0.003}
	cfg.Data.Images, cfg.Data.Labels = filepath.Join(dir, "images"), filepath.Join(dir, "labels")
	for path, b := range map[string][]byte{cfg.Data.Images: images, cfg.Data.Labels: labels} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cfg
}

// A model without embeddings has no table for them, and is scored by its accuracy.
func TestLeNetJob(t *testing.T) {
	cfg, l := squares(t, 400), newLocal(t)
	cfg.Audit, cfg.Epochs = true, 4
	var last report.Event
	r := mustRun(t, cfg, l, func(e report.Event) {
		if e.Event == report.EventStep {
			last = e
		}
	})
	if math.Abs(float64(r.FirstLoss)-math.Log(3)) > 0.05 || !(r.Accuracy > 0.95) || !(r.LogLoss < 0.3) ||
		r.HeldExamples != 80 || r.AUC == r.AUC {
		t.Errorf("first loss %.3f, accuracy %.3f, log loss %.3f, AUC %v on %d images; "+
			"want ln 3, > 0.95, < 0.3, none on 80",
			r.FirstLoss, r.Accuracy, r.LogLoss, r.AUC, r.HeldExamples)
	}
	if !(last.Accuracy > 0.9) || last.AUC == last.AUC || !(r.TrainingAccuracy == last.Accuracy) {
		t.Errorf("the last step has accuracy %v, AUC %v; the result %v", last.Accuracy, last.AUC, r.TrainingAccuracy)
	}
	for _, table := range l.Schemas() {
		if strings.HasSuffix(table.Name, ".embeddings") {
			t.Errorf("there is a table %s", table.Name)
		}
	}
}

// Threads of a classifier give the results of one thread.
func TestLeNetThreads(t *testing.T) {
	cfg := squares(t, 100)
	one := mustRun(t, cfg, newLocal(t), nil)
	cfg.Threads = 2
	two := mustRun(t, cfg, newLocal(t), nil)
	if math.Abs(float64(one.FirstLoss-two.FirstLoss)) > 1e-5 || math.Abs(float64(one.LogLoss-two.LogLoss)) > 1e-3 ||
		one.HeldExamples != two.HeldExamples || two.Accuracy != two.Accuracy {
		t.Errorf("first loss %v, log loss %v, accuracy %v with one thread; %v, %v, %v with two",
			one.FirstLoss, one.LogLoss, one.Accuracy, two.FirstLoss, two.LogLoss, two.Accuracy)
	}
}

func TestModelsWantTheirData(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"kind", func(c *Config) { c.Model.Kind = "cnn" }, "want dcn, deepfm, dlrm, fm, lenet, lr, two-tower, wide-deep"},
		{"images for a DLRM", func(c *Config) { c.Model.Kind = DLRM }, "want kind lenet"},
		{"no images", func(c *Config) {
			c.Data.Images, c.Data.Labels, c.Data.File, c.Data.Schema = "", "", data.Paths{"x"}, "y"
		},
			"needs images"},
		{"two data sets", func(c *Config) { c.Data.File, c.Data.Schema = data.Paths{"x"}, "y" },
			"data is given more than once"},
		{"no labels", func(c *Config) { c.Data.Labels = "" }, "must be given together"},
		{"half a held-out part", func(c *Config) { c.Data.HeldImages = "x" }, "must be given together"},
		{"limit", func(c *Config) { c.Data.Limit = -1 }, "limit is -1"},
		{"nothing", func(c *Config) { c.Data = DataConfig{} }, "no data"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := squares(t, 3)
			if err := cfg.Validate(); err != nil {
				t.Fatal(err)
			}
			tc.change(&cfg)
			if err := cfg.Validate(); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument ||
				!strings.Contains(err.Error(), tc.want) {
				t.Errorf("Validate = %v, want InvalidArgument with %q", err, tc.want)
			}
		})
	}
}
