package trainer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/report"
)

// clicksFile writes a file of so many examples and its schema.
func clicksFile(t *testing.T, examples int) (paths data.Paths, schema string) {
	t.Helper()
	dir := t.TempDir()
	file, schema := filepath.Join(dir, "clicks.csv"), filepath.Join(dir, "clicks.yaml")
	var text strings.Builder
	text.WriteString("clicked,ad,user\n")
	for i := range examples {
		fmt.Fprintf(&text, "%d,a%d,u%d\n", i%3/2, i%3, i%5)
	}
	for path, text := range map[string]string{file: text.String(),
		schema: "label: {column: clicked}\ncategorical: [{column: ad}, {column: user}]\n"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return data.Paths{file}, schema
}

// The examples of the validation file are scored after each epoch, each time ten times as many were trained, and at the
// end. All of the data file is trained, and the scores change no weight.
func TestValidationDuringTraining(t *testing.T) {
	run := func(held int) (l any, r *report.Result, scores []report.Event) {
		t.Helper()
		tables, cfg := newLocal(t), tinyConfig(0, 0)
		cfg.Generator, cfg.Batch, cfg.Epochs = nil, 10, 3
		yes := true
		cfg.Evaluate = &yes
		cfg.Data.File, cfg.Data.Schema = clicksFile(t, 240)
		if held > 0 {
			cfg.Validation, _ = clicksFile(t, held)
		} else {
			none := 0.0
			cfg.Data.Held = &none
			cfg.Evaluate = new(bool)
		}
		j, err := NewJob(t.Context(), cfg, tables, func(e report.Event) {
			if e.Event == report.EventValidation {
				scores = append(scores, e)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if r, err = j.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(bits(tables)), r, scores
	}
	plain, _, none := run(0)
	if len(none) > 0 {
		t.Errorf("%d scores without a validation file", len(none))
	}
	for _, tc := range []struct {
		held  int
		steps []int64
	}{{30, []int64{24, 48}}, {9, []int64{9, 18, 24, 33, 42, 48, 57, 66}}} {
		got, r, scores := run(tc.held)
		var steps []int64
		for _, e := range scores {
			steps = append(steps, e.Held.Step)
			if e.Held.Examples != tc.held || !(e.Held.LogLoss > 0) || !strings.Contains(e.Message, "held-out") {
				t.Errorf("a score of %d examples: %+v, %s", tc.held, e.Held, e.Message)
			}
		}
		if fmt.Sprint(steps) != fmt.Sprint(tc.steps) {
			t.Errorf("%d held-out examples were scored after the steps %v, want %v", tc.held, steps, tc.steps)
		}
		if r.Examples != 3*240 || r.HeldExamples != tc.held || got != plain {
			t.Errorf("%d examples trained, %d held out, equal weights: %v", r.Examples, r.HeldExamples, got == plain)
		}
		if !(scores[len(scores)-1].Held.LogLoss < scores[0].Held.LogLoss) {
			t.Errorf("the log loss went from %v to %v", scores[0].Held.LogLoss, scores[len(scores)-1].Held.LogLoss)
		}
	}
}

// When trainer 0 leaves, the trainer of the next rank scores the validation file.
func TestValidationAfterTrainer0HasLeft(t *testing.T) {
	cfg, rank, scores := tinyConfig(0, 0), 1, 0
	cfg.Generator, cfg.Batch, cfg.Epochs, cfg.Trainers, cfg.Rank = nil, 10, 3, 2, &rank
	cfg.Data.File, cfg.Data.Schema = clicksFile(t, 240)
	cfg.Validation, _ = clicksFile(t, 30)
	var j *Job
	j = newJob(t, cfg, newLocal(t), func(e report.Event) {
		if e.Event == report.EventValidation {
			scores++
		} else if e.Step == 18 { // in the second of three epochs of 12 steps
			j.ramp.Members([]int{1}, rank)
		}
	})
	if _, err := j.Run(t.Context()); err != nil || scores < 1 || scores > 2 {
		t.Errorf("%d scores, %v; want those after the second or third epoch", scores, err)
	}
}

// A saved model needs no job file and no schema: its description finds the tables and parses the examples, and all
// examples of a file are scored.
func TestASavedModelScoresAWholeFile(t *testing.T) {
	tables, cfg := newLocal(t), tinyConfig(0, 0)
	cfg.Generator, cfg.Batch, cfg.Epochs = nil, 10, 2
	cfg.Data.File, cfg.Data.Schema = clicksFile(t, 240)
	mustRun(t, cfg, tables, nil)
	path := filepath.Join(t.TempDir(), "clicks.model")
	if err := cfg.SaveModel(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(cfg.Data.Schema); err != nil {
		t.Fatal(err)
	}
	saved, err := LoadModel(path)
	if err != nil {
		t.Fatal(err)
	}
	saved.Data.File, _ = clicksFile(t, 77)
	saved.Validation = saved.Data.File
	j, err := NewJob(t.Context(), saved, tables, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := j.Evaluate(t.Context()); err != nil || r.HeldExamples != 77 || !(r.AUC > 0.9) {
		t.Errorf("%+v, %v; want the score of 77 examples of a model that knows them", r, err)
	}
}
