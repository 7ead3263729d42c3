package runs

import (
	"context"
	"testing"

	"github.com/rowraft/rowraft/trainer/report"
)

func TestASignalWhileScoringIsNoFailure(t *testing.T) {
	dir := t.TempDir()
	r := begin(t, dir, Head{Job: "ctr", Trainers: 1})
	r.End(testResult(0.5), context.Canceled) // what recording.end passes after a signal
	if got := open(t, dir, r.Run()); got.State() != Interrupted {
		t.Errorf("state %s, error %q", got.State(), got.Error())
	}
}

func TestAnEarlyStopHasItsBestScore(t *testing.T) {
	r := testResult(0.61)
	r.StopReason, r.BestScore = "early stop", &report.BestScore{Metric: report.MetricAUC, Value: 0.75, Step: 9}
	if s := ScoreOf(r); s.Value != 0.75 {
		t.Errorf("score %v; the docs say a run that stops early has its best score", s)
	}
}
