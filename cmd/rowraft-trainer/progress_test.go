package main

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/vbauerster/mpb/v8/decor"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/trainer/report"
)

func TestProgressLines(t *testing.T) {
	var out bytes.Buffer
	p := lineProgress(&out)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	nan := report.Number(math.NaN())
	step := report.Event{
		Event: report.EventStep, Time: at.Add(cli.LineEvery), Step: 120, Steps: 4000, Loss: 0.4321, AUC: 0.78125,
		Accuracy: nan, ExamplesPerSecond: 51234.4, StepsPerSecond: 100.06, StalenessSteps: 1.96, StalenessMax: 7,
		WaitingSeconds: 0.6, BatchesSkipped: 3, PushesAcknowledged: 118,
	}
	late := step
	late.Time, late.Step, late.Steps, late.Accuracy, late.BatchesLate = at.Add(2*cli.LineEvery), 240, 0, 0.5, 7
	first := step // the worker has measured no staleness yet
	first.Time, first.Step, first.Steps, first.StalenessSteps, first.StalenessMax = at.Add(3*cli.LineEvery), 2, 0, nan, 0
	for _, e := range []report.Event{
		{Event: report.EventStart, Time: at, Message: "clicks.csv"},
		{Event: report.EventSkipped, Time: at, Message: "step 3 skipped: the loss is not finite"},
		{Event: report.EventStep, Time: at.Add(cli.LineEvery - 1), Step: 119}, // too early
		step, late, first,
	} {
		p.observe(e)
	}
	want := `training on clicks.csv
step 3 skipped: the loss is not finite
step 120/4000  loss 0.4321  AUC 0.7812  51234 examples/s  100.1 steps/s  stale 2.0 pushes (max 7)  waiting 12 %  3 skipped  118 pushes acknowledged
step 240  loss 0.4321  accuracy 0.5000  51234 examples/s  100.1 steps/s  stale 2.0 pushes (max 7)  waiting 6 %  3 skipped  7 late  118 pushes acknowledged
step 2  loss 0.4321  AUC 0.7812  51234 examples/s  100.1 steps/s  waiting 4 %  3 skipped  118 pushes acknowledged
`
	if out.String() != want {
		t.Errorf("%s\nwant\n%s", out.String(), want)
	}
}

func TestABarWithoutAGoalHasNone(t *testing.T) {
	for want, s := range map[string]decor.Statistics{
		"step 7/4000 ": {Current: 7, Total: 4000},
		"step 7 ":      {Current: 7},
	} {
		if got := steps(s); got != want {
			t.Errorf("steps(%d of %d) = %q, want %q", s.Current, s.Total, got, want)
		}
	}
}
