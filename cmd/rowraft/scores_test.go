package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/member"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tables"
)

// noisyJob is a job of two trainers that overfits: the generated labels depend on the features a little, and the same
// examples are trained over and over.
func noisyJob(name, dest string) trainer.Config {
	cfg := smallJob(name, "adagrad", 0)
	cfg.Generator.Held = 2000
	cfg.Generator.Examples, cfg.Epochs, cfg.Trainers, cfg.Lease, cfg.Audit = 1<<10, 200, 2, time.Minute, false
	cfg.Embeddings.LR, cfg.Dense.LR = .3, .1
	cfg.EvaluateEvery.Steps, cfg.EarlyStop.Patience = 8, 4
	cfg.Checkpoint.To, cfg.Checkpoint.KeepBest = dest, true
	return cfg
}

// bestCheckpoints returns the names of the checkpoints of best scores in a destination.
func bestCheckpoints(t *testing.T, dest string) (names []string) {
	t.Helper()
	d, err := depot.Open(dest)
	if err != nil {
		t.Fatal(err)
	}
	all, err := depot.Scan(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if strings.HasPrefix(f.Name, "best-") && f.Usable() {
			names = append(names, f.Name)
		}
	}
	return names
}

// A job whose scores do not improve stops: all its trainers stop, say why, and name the best score with its checkpoint.
// The regular checkpoints, of which one is kept, remove none of the best score. The rows of that checkpoint have the
// best score again, and the job resumes from them.
func TestAnEarlyStopKeepsTheBestCheckpoint(t *testing.T) {
	for _, mode := range []string{trainer.Async, trainer.Sync} {
		t.Run(mode, func(t *testing.T) {
			dest := t.TempDir()
			c := startLive(t, 2)
			cfg := noisyJob("noisy", dest)
			cfg.Mode, cfg.Checkpoint.Every, cfg.Checkpoint.Keep = mode, time.Second, 1
			var mu sync.Mutex
			best, notes := report.Number(0), ""
			results := runTogether(t, c, cfg, func(e report.Event) {
				mu.Lock()
				defer mu.Unlock()
				if e.Event == report.EventValidation {
					best = max(best, e.Held.AUC)
				}
				if e.Message != "" {
					notes += e.Message + "\n"
				}
			}, func(context.Context) {})
			for rank, r := range results {
				b := r.BestScore
				if !r.Stopped || !strings.HasPrefix(r.StopReason, "early stop: ") || b == nil || b.Value != best ||
					b.Checkpoint == "" {
					t.Fatalf("trainer %d: stopped %v, because %q, with the best score %+v of %v\n%s", rank, r.Stopped, r.StopReason,
						b, best, notes)
				}
			}
			b := results[0].BestScore
			if names := bestCheckpoints(t, dest); len(names) != 1 || dest+"/"+names[0] != b.Checkpoint {
				t.Errorf("the destination has %v, the best score is in %s", names, b.Checkpoint)
			}
			if out := c.must("job", "describe", "noisy"); !strings.Contains(out, "early stop: ") ||
				!strings.Contains(out, b.Checkpoint) {
				t.Errorf("the job is described as\n%s", out)
			}
			c.must(append(strings.Fields(b.Restore)[1:], "--yes")...)
			if got := evaluated(t, c, cfg); got < b.Value-.02 || got > b.Value+.02 {
				t.Errorf("the rows of the best checkpoint have an AUC of %v, the best score is %v", got, b.Value)
			}
			cfg.Resume, cfg.EarlyStop.Patience, cfg.Epochs, cfg.Steps = "auto", 0, 0, 60
			for rank, r := range runTogether(t, c, cfg, nil, func(context.Context) {}) {
				if r.ResumedFrom != b.Checkpoint {
					t.Errorf("trainer %d resumes from %q", rank, r.ResumedFrom)
				}
			}
			if names := bestCheckpoints(t, dest); len(names) != 2 || dest+"/"+names[0] != b.Checkpoint {
				t.Errorf("after another run the destination has %v, want %s and that of the run", names, b.Checkpoint)
			}
		})
	}
}

// evaluated returns the AUC of the held-out examples with the rows that the cluster has.
func evaluated(t *testing.T, c *live, cfg trainer.Config) report.Number {
	t.Helper()
	cfg.Trainers = 1
	j, err := trainer.NewJob(t.Context(), cfg, tables.OpenCluster(c.dial()), nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := j.Evaluate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r.AUC
}

// A trainer that is started again knows the best score of its job: it makes no checkpoint of a worse one, and continues
// to count the scores after it.
func TestARestartedTrainerKnowsTheBestScore(t *testing.T) {
	dest := t.TempDir()
	c := startLive(t, 1)
	cfg := noisyJob("again", dest)
	cfg.Trainers, cfg.EarlyStop.Patience, cfg.Rank = 1, 1<<20, new(int)
	ctx, cancel := context.WithCancel(testutil.Context(t))
	defer cancel()
	scores := 0
	var best report.Number
	first, err := enterAndRun(ctx, c, cfg, func(e report.Event) {
		if e.Event == report.EventValidation {
			best = max(best, e.Held.AUC)
			if scores++; scores == 20 {
				cancel()
			}
		}
	})
	if err != nil || !first.Interrupted || first.BestScore == nil || first.BestScore.Value != best {
		t.Fatalf("%+v, %v; want the best score %v", first, err, best)
	}
	kept := bestCheckpoints(t, dest)
	cfg.EarlyStop.Patience = 24
	scores = 0
	second, err := enterAndRun(testutil.Context(t), c, cfg, func(e report.Event) {
		if e.Event == report.EventValidation {
			scores++
			if e.Held.Best && e.Held.AUC <= best {
				t.Errorf("AUC %v is the best score after a restart, and was %v before", e.Held.AUC, best)
			}
		}
	})
	if err != nil || !strings.HasPrefix(second.StopReason, "early stop: 24 scores") || second.BestScore.Value < best ||
		second.BestScore.Value == best && (scores >= 24 || fmt.Sprint(bestCheckpoints(t, dest)) != fmt.Sprint(kept)) {
		t.Errorf("%q after %d scores, the best is %+v, with the checkpoints %v; want %v, and %v", second.StopReason, scores,
			second.BestScore, bestCheckpoints(t, dest), best, kept)
	}
	if second.BestScore.Checkpoint == "" || !strings.HasPrefix(second.BestScore.Restore, "rowraft checkpoint restore ") {
		t.Errorf("%+v", second.BestScore)
	}
}

// A checkpoint of an unknown score in the policy of a job stays: it may be better than that of the run.
func TestAnUnknownBestCheckpointStays(t *testing.T) {
	dest := t.TempDir()
	c := startLive(t, 1)
	cfg := noisyJob("unknown", dest)
	cfg.Trainers = 1
	run := func() string {
		ctx, cancel := context.WithCancel(testutil.Context(t))
		defer cancel()
		r, err := enterAndRun(ctx, c, cfg, func(e report.Event) {
			if strings.HasPrefix(e.Message, "made checkpoint") { // the run is interrupted, so its policy stays
				cancel()
			}
		})
		if err != nil || r.BestScore == nil || r.SavedScore == nil && r.BestScore.Checkpoint == "" {
			t.Fatalf("%+v, %v", r, err)
		}
		return bestCheckpoints(t, dest)[0]
	}
	one := run()
	cfg.Batch /= 2 // another run begins, which knows no score
	run()
	if names := bestCheckpoints(t, dest); len(names) < 2 || names[0] != one {
		t.Errorf("the destination has %v, want %s and a later one", names, one)
	}
	var m member.CheckpointConfig
	if m.KeepBest = true; m.Validate() == nil {
		t.Error("keep_best without a destination is valid")
	}
}
