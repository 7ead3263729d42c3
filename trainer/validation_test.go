package trainer

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/scores"
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

// The examples of the validation file are scored after each epoch, each time ten times as many were trained, and after
// the last step, whose score is that of the result. All of the data file is trained, and the scores change no weight.
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
	}{{30, []int64{24, 48, 72}}, {9, []int64{9, 18, 24, 33, 42, 48, 57, 66, 72}}} {
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
		if last := scores[len(scores)-1].Held; last.AUC != r.AUC || last.LogLoss != r.LogLoss {
			t.Errorf("the last score is %v, that of the result AUC %v, log loss %v", last, r.AUC, r.LogLoss)
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

// A share of the data that is held out is scored during the training if the job sets an interval.
func TestHeldShareIsScoredAtAnInterval(t *testing.T) {
	for _, by := range []string{"last", "random"} {
		cfg := tinyConfig(0, 0)
		cfg.Generator, cfg.Batch, cfg.Epochs = nil, 10, 3
		cfg.Data.File, cfg.Data.Schema = clicksFile(t, 300)
		cfg.Data.HeldBy = by
		cfg.EvaluateEvery.Steps = 10
		var steps []int64
		r := mustRun(t, cfg, newLocal(t), func(e report.Event) {
			if e.Event == report.EventValidation {
				steps = append(steps, e.Held.Step)
				if n := e.Held.Examples; by == "last" && n != 60 || n < 30 || n > 90 || !(e.Held.Calibration > 0) ||
					!(e.Held.CalibrationError >= 0) || !(e.Held.Seconds > 0) {
					t.Errorf("held out by %s: a score %+v", by, e.Held)
				}
			}
		})
		last := r.Steps
		want := fmt.Sprint([]int64{10, 20, 30, 40, 50, 60, 70, last})
		if last <= 70 { // a random share may be larger
			want = fmt.Sprint([]int64{10, 20, 30, 40, 50, 60, last})
		}
		if got := fmt.Sprint(steps); got != want || by == "last" && last != 72 {
			t.Errorf("held out by %s: scored after the steps %v of %d, want %v", by, got, last, want)
		}
	}
}

// A job that overfits stops when its patience is over, and its result names the best score and why it stopped. Examples
// with random labels are learnt by heart, so that the held-out ones are predicted worse and worse.
func TestEarlyStop(t *testing.T) {
	for _, inFlight := range []int{0, 2} {
		cfg := tinyConfig(0, inFlight)
		cfg.Generator, cfg.Batch, cfg.Epochs = nil, 10, 400
		cfg.Data.File, cfg.Data.Schema = noiseFile(t, 400)
		cfg.EvaluateEvery.Steps, cfg.EarlyStop.Patience = 20, 4
		yes, notes := true, ""
		cfg.Evaluate = &yes
		var auc []report.Number
		r := mustRun(t, cfg, newLocal(t), func(e report.Event) {
			if e.Event == report.EventValidation {
				auc = append(auc, e.Held.AUC)
			}
			notes += e.Message
		})
		best := slices.Max(auc)
		at := slices.Index(auc, best)
		if b := r.BestScore; b == nil || b.Value != best || b.Step != int64(20*(at+1)) || b.Metric != "auc" ||
			len(auc) != at+1+4 || r.Steps < int64(20*len(auc)) || r.Steps > int64(20*len(auc)+8) {
			t.Errorf("%d in flight: the scores %v, the best %+v, %d steps; want a stop 4 scores after the best", inFlight, auc,
				b, r.Steps)
		}
		if !strings.Contains(r.StopReason, "early stop: 4 scores were not better than AUC") || r.Interrupted ||
			!(r.AUC > 0) || !strings.Contains(notes, r.StopReason) {
			t.Errorf("%d in flight: %q, interrupted %v, AUC %v of the held-out examples", inFlight, r.StopReason,
				r.Interrupted, r.AUC)
		}
	}
}

// noiseFile is clicksFile with labels that nothing predicts.
func noiseFile(t *testing.T, examples int) (data.Paths, string) {
	t.Helper()
	paths, schema := clicksFile(t, 1)
	random := rand.New(rand.NewPCG(7, 7))
	text := "clicked,ad,user\n"
	for range examples {
		text += fmt.Sprintf("%d,a%d,u%d\n", random.IntN(2), random.IntN(30), random.IntN(30))
	}
	if err := os.WriteFile(paths[0], []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return paths, schema
}

// A job without held-out examples cannot be told to score them.
func TestScoresNeedHeldOutExamples(t *testing.T) {
	none := 0.0
	for name, change := range map[string]func(*Config){
		"no share":     func(c *Config) { c.Data.Held = &none },
		"a stream":     func(c *Config) { c.Data.Follow, c.Data.File = "-", nil },
		"no generated": func(c *Config) { c.Generator, c.Data.File = &data.GeneratorConfig{}, nil },
	} {
		for _, set := range []func(*Config){
			func(c *Config) { c.EvaluateEvery.Steps = 1 }, func(c *Config) { c.EarlyStop.Patience = 1 },
			func(c *Config) { c.Checkpoint.KeepBest, c.Checkpoint.To = true, "/c" },
		} {
			cfg := DefaultConfig()
			cfg.Data.File, cfg.Data.Schema = clicksFile(t, 10)
			set(&cfg)
			if err := cfg.Validate(); err != nil {
				t.Fatal(err)
			}
			change(&cfg)
			if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "held-out examples") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// The checkpoint of the best score has the scored weights and few later batches, however long it takes to begin: those
// that the trainer had read.
func TestBestCheckpointHasTheScoredWeights(t *testing.T) {
	for _, inFlight := range []int{0, 2} {
		cfg := tinyConfig(0, inFlight)
		cfg.Generator, cfg.Batch, cfg.Epochs = nil, 10, 20
		cfg.Data.File, cfg.Data.Schema = clicksFile(t, 300)
		cfg.EvaluateEvery.Steps = 100
		cfg.Checkpoint.KeepBest, cfg.Checkpoint.To = true, "/c"
		var scored atomic.Int64
		j := newJob(t, cfg, newLocal(t), func(e report.Event) {
			if e.Event == report.EventValidation {
				scored.Store(e.Held.Step)
			}
		})
		saves := 0
		prepareScores(j, &scores.Memory{}, func(string) (string, error) {
			<-time.After(100 * time.Millisecond) //tidy:allow sleep the scheduler takes some time to pause the trainers
			p, release, err := j.pausePoint.Request(t.Context(), nil)
			if err != nil {
				return "", err
			}
			defer release()
			saves++
			if late := p.State.Step - scored.Load(); late < 0 || late > int64(1+inFlight+inFlight/2) {
				t.Errorf("%d in flight: the checkpoint has %d batches after the score", inFlight, late)
			}
			return "/c/1", nil
		}, nil)
		if _, err := j.Run(t.Context()); err != nil || saves == 0 {
			t.Errorf("%d checkpoints, %v", saves, err)
		}
	}
}
