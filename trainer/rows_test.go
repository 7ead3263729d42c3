package trainer

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tables"
)

// A job with tables of its own for some features trains them all, with their widths, and scores with them.
func TestTablesOfFeatures(t *testing.T) {
	dir := t.TempDir()
	var text strings.Builder
	text.WriteString("y\tuser\thistory\ttag\n")
	for i := range 600 {
		user := i % 10
		text.WriteString(strings.Join([]string{string(rune('0' + user/5)), string(rune('0' + user)), "1 2 3 4 5"[:1+2*(i%4)],
			"t"}, "\t") + "\n")
	}
	for name, text := range map[string]string{"x.tsv": text.String(), "x.yaml": `format: tsv
label: {column: y}
categorical:
  - {column: user, table: users, dim: 6, ids: exact}
  - {column: history, table: users, dim: 6, ids: exact, separator: " ", pooling: mean, max_length: 2}
  - {column: tag}
`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := DefaultConfig()
	cfg.Data.File, cfg.Data.Schema = data.Paths{filepath.Join(dir, "x.tsv")}, filepath.Join(dir, "x.yaml")
	cfg.Data.HeldBy, cfg.Data.Shuffle = data.HeldRandom, data.ShuffleExamples
	cfg.Model = ModelConfig{Kind: "lr", Dim: 4}
	cfg.Batch, cfg.InFlight, cfg.Epochs, cfg.Embeddings.LR = 20, new(0), 4, 0.5
	local, err := tables.NewLocal(2, rowraft.Float32)
	if err != nil {
		t.Fatal(err)
	}
	j, err := NewJob(t.Context(), cfg, local, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := j.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.HeldExamples < 80 || r.HeldExamples > 160 || !(r.AUC > 0.99) {
		t.Errorf("AUC %v on %d held-out examples: the user decides the label", r.AUC, r.HeldExamples)
	}
	cfg.Model = ModelConfig{Kind: "dcn", Dim: 4, Top: []int{8}}
	cfg.Job = "wide"
	j, err = NewJob(t.Context(), cfg, local, nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range j.fields.Tables {
		names = append(names, s.Name)
		if want := map[string]int{"wide.embeddings": 4, "wide.embeddings.users": 6}[s.Name]; s.Dim != want {
			t.Errorf("table %s has rows of %d, want %d", s.Name, s.Dim, want)
		}
	}
	if r, err = j.Run(t.Context()); err != nil || math.IsNaN(float64(r.AUC)) ||
		len(names) != 2 || !cfg.hasTable(names[0]) {
		t.Errorf("%v: %v, %v", names, r, err)
	}
}

// A rating is a number, of which the model learns more than the mean; two labels are two tasks.
func TestRatingsAndSeveralLabels(t *testing.T) {
	dir := t.TempDir()
	var text strings.Builder
	text.WriteString("rating\tlong\tuser\n")
	for i := range 600 {
		text.WriteString(strings.Join([]string{string(rune('1' + i%5)), string(rune('0' + i%2)),
			"u" + string(rune('0'+i%10))}, "\t") + "\n")
	}
	path := filepath.Join(dir, "x.tsv")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(labels string, steps int64) *report.Result {
		t.Helper()
		cfg := DefaultConfig()
		cfg.Data.File, cfg.Data.Schema = data.Paths{path}, filepath.Join(dir, "x.yaml")
		schema := "format: tsv\n" + labels + "categorical: [{column: user}]\n"
		if err := os.WriteFile(cfg.Data.Schema, []byte(schema), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg.Model = ModelConfig{Kind: "dcn", Dim: 4, Top: []int{8}}
		cfg.Batch, cfg.InFlight, cfg.Epochs, cfg.Embeddings.LR = 20, new(0), 20, 0.2
		cfg.Steps = steps
		local, err := tables.NewLocal(2, rowraft.Float32)
		if err != nil {
			t.Fatal(err)
		}
		j, err := NewJob(t.Context(), cfg, local, nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := j.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	// The mean alone leaves √2.
	if r := run("label: {column: rating, kind: number}\n", 0); !(r.RMSE < 0.5) || r.HeldExamples != 120 || r.AUC == r.AUC {
		t.Errorf("ratings: RMSE %v, AUC %v on %d examples", r.RMSE, r.AUC, r.HeldExamples)
	}
	// Little training leaves more than the deviation √2, and less than the root of the mean square, √11.
	if r := run("label: {column: rating, kind: number}\n", 1); !(r.RMSE > 1.5 && r.RMSE < 3.4) {
		t.Errorf("ratings after one step: RMSE %v, want 1.5 to 3.4", r.RMSE)
	}
	r := run("labels: [{column: long}, {column: rating, positive: ['4', '5'], name: liked}]\n", 0)
	if !(r.AUC > 0.95) || r.HeldExamples != 120 || r.RMSE == r.RMSE {
		t.Errorf("two labels: AUC %v, RMSE %v on %d examples", r.AUC, r.RMSE, r.HeldExamples)
	}
}
