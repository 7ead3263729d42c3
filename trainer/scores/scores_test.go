package scores

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer/report"
)

func TestInterval(t *testing.T) {
	for text, want := range map[string]Interval{"500": {Steps: 500}, "10m": {Time: 10 * time.Minute}, "0": {}} {
		var got, again Interval
		if err := yaml.Unmarshal([]byte(text), &got); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
		written, err := yaml.Marshal(got)
		if err != nil || yaml.Unmarshal(written, &again) != nil || again != want {
			t.Errorf("%s is written as %s and read as %+v", text, written, again)
		}
	}
	for _, text := range []string{"-1", "often", "-5m", "10 m", "[1]"} {
		var i Interval
		if err := yaml.Unmarshal([]byte(text), &i); err == nil || !strings.Contains(err.Error(), "line 1: evaluate_every") {
			t.Errorf("%s: %+v, %v; want an error that names line and key", text, i, err)
		}
	}
}

func TestClock(t *testing.T) {
	now := time.Unix(1e9, 0)
	for _, tc := range []struct {
		name  string
		clock Clock
		step  int64
		epoch bool
		after time.Duration
		want  bool
	}{
		{"the end of an epoch", Clock{Held: 100}, 20, true, 0, true},
		{"ten times as many examples", Clock{Held: 100}, 100, false, 0, true},
		{"one batch less", Clock{Held: 100}, 99, false, 0, false},
		{"nothing was trained since", Clock{Held: 100, Step: 20, Examples: 200}, 20, true, 0, false},
		{"enough steps", Clock{Every: Interval{Steps: 7}, Step: 20}, 27, false, 0, true},
		{"the end of an epoch, but too few steps", Clock{Every: Interval{Steps: 7}, Step: 20}, 26, true, 0, false},
		{"enough time", Clock{Every: Interval{Time: time.Minute}}, 1, false, time.Minute, true},
		{"too little time", Clock{Every: Interval{Time: time.Minute}}, 1e6, true, 59 * time.Second, false},
	} {
		tc.clock.At = now
		if got := tc.clock.Due(tc.step, 10*tc.step, tc.epoch, now.Add(tc.after)); got != tc.want {
			t.Errorf("%s: due is %v", tc.name, got)
		}
	}
}

// auc returns a score after a step.
func auc(step int64, value float64) *report.Held {
	nan := report.Number(math.NaN())
	return &report.Held{Step: step, AUC: report.Number(value), RMSE: nan, Accuracy: nan}
}

// rmse is auc for labels that are numbers.
func rmse(step int64, value float64) *report.Held {
	h := auc(step, math.NaN())
	h.RMSE = report.Number(value)
	return h
}

func TestEarlyStop(t *testing.T) {
	for _, tc := range []struct {
		name   string
		of     func(int64, float64) *report.Held
		stop   EarlyStop
		values []float64
		at     int // the score that stops the job; -1: none
		best   float64
	}{
		{"two scores that are not better", auc, EarlyStop{Patience: 2}, []float64{.6, .7, .7, .69, .9}, 3, .7},
		{"a better one begins the count again", auc, EarlyStop{Patience: 2}, []float64{.6, .5, .7, .6, .8}, -1, .8},
		{"better by too little", auc, EarlyStop{Patience: 2, MinDelta: .05}, []float64{.6, .64, .645, .9}, 2, .6},
		{"a smaller error is better", rmse, EarlyStop{Patience: 2}, []float64{2, 1.5, 1.6, 1.5}, 3, 1.5},
		{"without patience", auc, EarlyStop{}, []float64{.9, .8, .7, .6, .5}, -1, .9},
		{"an undefined score counts for nothing", auc, EarlyStop{Patience: 1}, []float64{.6, math.NaN(), .7}, -1, .7},
	} {
		k := &Keeper{Book: &Memory{}, Stop: tc.stop, Note: t.Logf}
		stopped := -1
		for i, v := range tc.values {
			if verdict := k.Report(t.Context(), tc.of(int64(i+1), v)); verdict.Stop != "" && stopped < 0 {
				stopped = i
				if !strings.Contains(verdict.Stop, fmt.Sprintf("%.4f after step", tc.best)) {
					t.Errorf("%s: %q does not name the best score", tc.name, verdict.Stop)
				}
				break
			}
		}
		var r report.Result
		if err := k.Fill(t.Context(), &r, nil); err != nil || stopped != tc.at ||
			math.Abs(float64(r.BestScore.Value)-tc.best) > 1e-6 {
			t.Errorf("%s: stopped at score %d, best %+v, %v; want %d, %v", tc.name, stopped, r.BestScore, err, tc.at, tc.best)
		}
	}
	for _, e := range []EarlyStop{{Patience: -1}, {MinDelta: .1}, {Patience: 1, MinDelta: -1},
		{Patience: 1, MinDelta: math.NaN()}} {
		if e.Validate() == nil {
			t.Errorf("%+v is valid", e)
		}
	}
}

// saver makes checkpoints 1, 2, … and keeps the last, as a policy does.
type saver struct {
	made int
	from []string // what was the last one before each
	fail error
}

func (s *saver) save(saved string) (string, error) {
	s.from = append(s.from, saved)
	if s.fail != nil {
		return "", s.fail
	}
	s.made++
	return fmt.Sprintf("/c/%d", s.made), nil
}

// book is a Memory that keeps checkpoints as the scheduler does.
type book struct{ Memory }

func (b *book) ReportScore(ctx context.Context, s jobs.Score, lower bool, minDelta float64) (jobs.Scores, error) {
	if s.Checkpoint == "" {
		return b.Memory.ReportScore(ctx, s, lower, minDelta)
	}
	if b.all.Saved = &s; b.all.Best.Step == s.Step {
		b.all.Best = &s
	}
	return b.all, nil
}

// Each best score gets a checkpoint. After a checkpoint that failed the next score gets one if it is better than that
// of the last checkpoint. No checkpoint replaces that of a better score, nor that of the best score if another one is
// better by less than min_delta.
func TestBestScoresAreSaved(t *testing.T) {
	s := &saver{}
	k := &Keeper{Book: &book{}, Stop: EarlyStop{Patience: 9, MinDelta: .01}, Note: t.Logf, Save: s.save}
	for i, tc := range []struct {
		value float64
		fail  bool
		tries int // checkpoints begun until then
		saved float64
	}{
		{.7, false, 1, .7}, {.6, false, 1, .7}, {.705, false, 1, .7}, // better, but not by min_delta
		{.8, true, 2, .7}, {.75, false, 3, .75}, {.74, false, 3, .75}, {.9, false, 4, .9},
	} {
		if s.fail = nil; tc.fail {
			s.fail = errors.New("no space")
		}
		k.Report(t.Context(), auc(int64(i), tc.value))
		k.Wait()
		all, _ := k.Book.Scores(t.Context())
		if len(s.from) != tc.tries || math.Abs(all.Saved.Value-tc.saved) > 1e-6 {
			t.Errorf("score %d, %v: %d checkpoints begun, the last is of %+v; want %d, of %v", i, tc.value, len(s.from),
				all.Saved, tc.tries, tc.saved)
		}
	}
	if got, want := fmt.Sprint(s.from), "[ /c/1 /c/1 /c/2]"; got != want {
		t.Errorf("the checkpoints before each: %s, want %s", got, want)
	}
	var r report.Result
	err := k.Fill(t.Context(), &r, func(path string) string { return "restore " + path })
	if err != nil || r.BestScore.Checkpoint != "/c/3" || r.BestScore.Restore != "restore /c/3" || r.SavedScore != nil {
		t.Errorf("%+v, saved %+v, %v", r.BestScore, r.SavedScore, err)
	}
}

// Training continues while a checkpoint is made. That of a better score waits for it, and the best of those that wait
// is made.
func TestSavingIsConcurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		let, saved := make(chan struct{}), []string{}
		k := &Keeper{Book: &book{}, Note: t.Logf, Save: func(last string) (string, error) {
			saved = append(saved, last)
			<-let
			return fmt.Sprintf("/c/%d", len(saved)), nil
		}}
		for step := range int64(4) {
			k.Report(t.Context(), auc(step, .5+float64(step)/10))
			synctest.Wait()
			if k.Saving() == nil || len(saved) != 1 {
				t.Fatalf("score %d: %d checkpoints are being made", step, len(saved))
			}
		}
		close(let)
		k.Wait()
		var r report.Result
		_ = k.Fill(t.Context(), &r, func(path string) string { return path })
		if b := r.BestScore; k.Saving() != nil || b.Step != 3 || b.Checkpoint != "/c/2" || fmt.Sprint(saved) != "[ /c/1]" {
			t.Errorf("best %+v, made after %v; want the second checkpoint, after the first one", b, saved)
		}
	})
	if (*Keeper)(nil).Saving() != nil {
		t.Error("a job without scores makes a checkpoint")
	}
}

// While a checkpoint is made, or waits, a score that is worse, or is the best one by less than min_delta, begins none:
// its checkpoint would be the last, and the one that is kept.
func TestNoCheckpointReplacesThatOfABetterScore(t *testing.T) {
	for _, tc := range []struct {
		name   string
		values []float64
		fail   bool // the first checkpoint fails before the second score comes
		made   int
		saved  float64
	}{
		{"a worse score", []float64{.8, .7}, false, 1, .8},
		{"better by less than min_delta", []float64{.8, .805}, false, 1, .8},
		{"a better score waits", []float64{.8, .9, .85}, false, 2, .9},
		{"a worse one after a failure", []float64{.9, .8, .7}, true, 2, .8},
		{"a better one after a failure", []float64{.9, .7, .8}, true, 3, .8},
	} {
		synctest.Test(t, func(t *testing.T) {
			let, made := make(chan error), 0
			k := &Keeper{Book: &book{}, Stop: EarlyStop{Patience: 9, MinDelta: .01}, Note: t.Logf}
			k.Save = func(string) (string, error) {
				made++
				return fmt.Sprintf("/c/%d", made), <-let
			}
			for i, v := range tc.values {
				k.Report(t.Context(), auc(int64(i), v))
				if synctest.Wait(); tc.fail && i == 0 {
					let <- errors.New("no space")
					k.Wait()
				}
			}
			close(let)
			k.Wait()
			all, _ := k.Book.Scores(t.Context())
			if made != tc.made || math.Abs(all.Saved.Value-tc.saved) > 1e-6 {
				t.Errorf("%s: %d checkpoints, the last of %v; want %d, %v", tc.name, made, all.Saved.Value, tc.made, tc.saved)
			}
		})
	}
}
