package trainer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tables"
)

// trainedClicks trains on a file of clicks, and returns a job file without data and the file.
func trainedClicks(t *testing.T, to *tables.Local) (model Config, file string) {
	cfg := tinyConfig(0, 0)
	cfg.Generator, cfg.Batch, cfg.Epochs = nil, 10, 2
	clicks, schema := clicksFile(t, 240)
	cfg.Data.File, cfg.Data.Schema = clicks, schema
	mustRun(t, cfg, to, nil)
	path := filepath.Join(t.TempDir(), "clicks.model")
	if err := cfg.SaveModel(path); err != nil {
		t.Fatal(err)
	}
	model, err := LoadModel(path)
	if err != nil {
		t.Fatal(err)
	}
	return model, clicks[0]
}

// predictions returns what Predict computes for a file, without its labels.
func predictions(t *testing.T, model Config, to *tables.Local, file string) (out []float32) {
	model.Data.File, model.Data.Unlabelled, model.Data.Held = data.Paths{file}, true, new(float64)
	j, err := NewJob(t.Context(), model, to, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := j.Predict(t.Context(), 1, func(p *Predicted) error {
		out = append(out, p.Result.Predictions...)
		return nil
	})
	if err != nil || r.HeldExamples != len(out) {
		t.Fatalf("%d predictions, the result says %d: %v", len(out), r.HeldExamples, err)
	}
	return out
}

// TestPredictionsAreThoseOfTheScore: the predictions of a file, in its order and with its labels, have the AUC and the
// log loss that Evaluate computes. They do not depend on the labels, nor on whether the file has that column.
func TestPredictionsAreThoseOfTheScore(t *testing.T) {
	to := newLocal(t)
	model, file := trainedClicks(t, to)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	out := predictions(t, model, to, file)
	if len(out) != len(lines)-1 {
		t.Fatalf("%d predictions for %d examples", len(out), len(lines)-1)
	}

	scored := model
	scored.Data.File, scored.Validation = data.Paths{file}, data.Paths{file}
	j, err := NewJob(t.Context(), scored, to, nil)
	if err != nil {
		t.Fatal(err)
	}
	want, err := j.Evaluate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at := -1
	for i, name := range strings.Split(lines[0], ",") {
		if name == model.Data.Described.Labels[0].Column.Column {
			at = i
		}
	}
	var pairs report.Predictions
	bare := filepath.Join(t.TempDir(), "bare.csv")
	var rest []string
	for i, line := range lines {
		values := strings.Split(line, ",")
		if i > 0 {
			pairs.Add(out[i-1], values[at] == model.Data.Described.Labels[0].Positive[0])
		}
		rest = append(rest, strings.Join(append(values[:at:at], values[at+1:]...), ","))
	}
	if got := pairs.Score(); report.Number(got.AUC) != want.AUC || report.Number(got.LogLoss) != want.LogLoss {
		t.Errorf("the predictions have the score %+v, Evaluate %v and %v", got, want.AUC, want.LogLoss)
	}
	if err := os.WriteFile(bare, []byte(strings.Join(rest, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, p := range predictions(t, model, to, bare) {
		if p != out[i] {
			t.Fatalf("example %d is %v without the column of labels, and %v with it", i, p, out[i])
		}
	}
}

// TestPredictCreatesNoRows: ids that no trainer has seen stay without rows.
func TestPredictCreatesNoRows(t *testing.T) {
	to := newLocal(t)
	model, file := trainedClicks(t, to)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other.csv")
	head, body, _ := strings.Cut(string(text), "\n")
	body = strings.ReplaceAll(body, ",", ",new") // the ids, and what is not a number
	if err := os.WriteFile(other, []byte(head+"\n"+body), 0o600); err != nil {
		t.Fatal(err)
	}
	before := rowsOf(t, to, model)
	if got := len(predictions(t, model, to, other)); got != 240 {
		t.Errorf("%d predictions", got)
	}
	if after := rowsOf(t, to, model); after != before {
		t.Errorf("the tables had %d rows, and have %d", before, after)
	}
}

// TestAnInterruptedPredictSaysSo: when its context ends, Predict returns what it has done, and no error.
func TestAnInterruptedPredictSaysSo(t *testing.T) {
	to := newLocal(t)
	model, file := trainedClicks(t, to)
	model.Data.File, model.Data.Unlabelled, model.Data.Held = data.Paths{file}, true, new(float64)
	j, err := NewJob(t.Context(), model, to, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r, err := j.Predict(ctx, 1, func(*Predicted) error { cancel(); return nil })
	if err != nil || !r.Interrupted || r.HeldExamples == 240 {
		t.Errorf("%+v, %v; want an interrupted result", r, err)
	}
}

// TestPredictWorkersKeepTheOrder: the lines of the examples, and their predictions, come in the order of the file for
// any number of workers, with the same bits.
func TestPredictWorkersKeepTheOrder(t *testing.T) {
	to := newLocal(t)
	model, file := trainedClicks(t, to)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	want := predictions(t, model, to, file)
	model.Data.File, model.Data.Unlabelled, model.Data.Held = data.Paths{file}, true, new(float64)
	model.Data.KeepLines, model.Batch = true, 7
	for _, workers := range []int{1, 3, 8} {
		j, err := NewJob(t.Context(), model, to, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []float32
		_, err = j.Predict(t.Context(), workers, func(p *Predicted) error {
			for i := range p.N {
				if line, want := string(p.Lines.Line(i)), lines[1+len(got)+i]; line != want {
					t.Errorf("line %d is %q, want %q", len(got)+i, line, want)
				}
			}
			if string(p.Lines.Head) != lines[0] || p.Lines.Separator != ',' {
				t.Errorf("header %q, separator %q", p.Lines.Head, p.Lines.Separator)
			}
			got = append(got, p.Result.Predictions...)
			return nil
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%d workers: %d predictions, %v; want %d equal ones", workers, len(got), err, len(want))
		}
	}
	j, err := NewJob(t.Context(), model, to, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Predict(t.Context(), 0, nil); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("0 workers: %v, want CodeInvalidArgument", err)
	}
	broken := rowraft.Errorf(rowraft.CodeOverloaded, "the disk is full")
	if _, err := j.Predict(t.Context(), 3, func(*Predicted) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("%v, want the error of the writer", err)
	}
}

func rowsOf(t *testing.T, to *tables.Local, c Config) (n int) {
	for _, s := range c.schemas() {
		have, err := to.EnsureTable(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		n += to.Len(have.ID)
	}
	return n
}
