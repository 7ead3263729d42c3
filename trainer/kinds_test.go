package trainer

import (
	"math"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/accel"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/models"
)

// Every kind of model for logs learns a generated log, whose labels depend on single values and on dense numbers, and
// two equal runs give equal bits. The rows have the width that the kind asks for.
func TestKindsLearn(t *testing.T) {
	for _, kind := range models.Kinds() {
		k, _ := models.Find(kind)
		if k.RowWidth == nil {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			cfg := DefaultConfig()
			generator := data.DefaultGenerator()
			generator.Examples, generator.Held, generator.Categorical, generator.Keys = 40_000, 4000, 5, 50
			cfg.Generator, cfg.InFlight, cfg.Batch, cfg.Device = &generator, new(0), 256, "cpu"
			cfg.Model = ModelConfig{Kind: kind, Dim: 4, Bottom: []int{16}, Top: []int{16}, Items: 2}
			cfg.Embeddings.LR = 0.1
			l := newLocal(t)
			r := mustRun(t, cfg, l, nil)
			// A two-tower model learns which items go with a query, not how probable a click is.
			if want := r.BestAUC - 0.05; kind != "two-tower" && !(r.AUC > want) || math.IsNaN(float64(r.TrainingLoss)) {
				t.Errorf("AUC %.4f, loss %.4f; best %.4f", r.AUC, r.TrainingLoss, r.BestAUC)
			}
			if again := mustRun(t, cfg, newLocal(t), nil); again.AUC != r.AUC || again.TrainingLoss != r.TrainingLoss {
				t.Errorf("AUC %v, loss %v in one run, %v, %v in another", r.AUC, r.TrainingLoss, again.AUC, again.TrainingLoss)
			}
			var rows rowraft.Schema
			for _, s := range l.Schemas() {
				if s.Name == cfg.Job+".embeddings" {
					rows = s
				}
			}
			if rows.Dim != k.RowWidth(4) {
				t.Errorf("rows have %d weights, want %d", rows.Dim, k.RowWidth(4))
			}
		})
	}
}

// On a CPU a DLRM is computed by layers, which are several times faster than a graph and give an example the same bits
// in every batch.
func TestDLRMOnACPUIsNoGraph(t *testing.T) {
	for _, choice := range []string{accel.CPU, accel.Auto} {
		backend, report, err := accel.Open(choice)
		if err != nil {
			t.Fatal(err)
		}
		cfg := DefaultConfig()
		m, err := cfg.newModel(backend, data.Shape{Dense: 2, Categorical: 3}, 4)
		if err != nil {
			t.Fatal(err)
		}
		if _, graph := m.(*models.DLRMGraph); graph != (report.Device == accel.CUDA) {
			t.Errorf("device %s, %s: the model is a %T", choice, report.Device, m)
		}
	}
}
