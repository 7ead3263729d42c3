package trainer

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tables"
)

// quality trains on Local tables and returns the score of the held-out examples.
func qualityOf(t testing.TB, cfg Config) *report.Result {
	t.Helper()
	tables, err := tables.NewLocal(4, rowraft.Float32)
	if err != nil {
		t.Fatal(err)
	}
	j, err := NewJob(context.Background(), cfg, tables, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := j.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d steps, %d examples in %.1f s (%.0f/s): training AUC %.4f; "+
		"held out AUC %.4f (best %.4f), log loss %.4f (best %.4f)",
		r.Steps, r.Examples, r.Seconds, r.ExamplesPerSecond, r.TrainingAUC, r.AUC, r.BestAUC, r.LogLoss, r.BestLogLoss)
	return r
}

// example loads a configuration of the project. It skips the test if the data is absent.
func example(t testing.TB, name string) Config {
	t.Helper()
	cfg, err := LoadConfig("../examples/" + name)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Data.File[0] = strings.Replace(cfg.Data.File[0], "../examples/data", "../../shared/data", 1)
	if _, err := os.Stat(cfg.Data.File[0]); err != nil {
		t.Skipf("%s is absent: the data is not part of the project", cfg.Data.File)
	}
	cfg.Endpoints, cfg.InFlight = nil, new(0)
	return cfg
}

func TestAdult(t *testing.T) {
	if r := qualityOf(t, example(t, "train-adult.yaml")); !(r.AUC >= 0.885) {
		t.Errorf("AUC %.4f after one pass, want ≥ 0.885", r.AUC)
	}
}

func TestCriteo(t *testing.T) {
	if r := qualityOf(t, example(t, "train-criteo.yaml")); !(r.AUC >= 0.70) {
		t.Errorf("AUC %.4f after %d steps, want ≥ 0.70", r.AUC, r.Steps)
	}
}

// The demo's model comes near the best possible score on a tenth of its data.
func TestGenerated(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	cfg, err := LoadConfig("../examples/train-generated.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cfg.InFlight, cfg.Trainers = new(0), 1
	cfg.Generator.Examples, cfg.Generator.Held = 100_000, 20_000
	if r := qualityOf(t, cfg); !(r.AUC >= r.BestAUC-0.03) || r.AUC > r.BestAUC+0.005 {
		t.Errorf("AUC %.4f, best %.4f: want within 0.03", r.AUC, r.BestAUC)
	}
}
