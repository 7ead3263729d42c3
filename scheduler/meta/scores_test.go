package meta

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

// cmdScore reports an AUC.
func cmdScore(id *rowraftv1.JobIdentity, value float64, step uint64, checkpoint string) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_ReportScore{ReportScore: &rowraftv1.ReportScoreRequest{
		Identity: id, Score: &rowraftv1.JobScore{Metric: "auc", Value: value, Step: step, Checkpoint: checkpoint}}}}
}

// describe returns the scores of job ctr: best, saved and last one, each with its checkpoint, and the scores since.
func (a *applier) describe() string {
	one := func(s *rowraftv1.JobScore) string {
		if s == nil {
			return "none"
		}
		return fmt.Sprintf("%v@%d%s", s.GetValue(), s.GetStep(), s.GetCheckpoint())
	}
	s := a.m.RunOf("ctr").GetScores()
	return fmt.Sprintf("%s %s %s %d", one(s.GetBest()), one(s.GetSaved()), one(s.GetLast()), s.GetSinceBest())
}

func TestScores(t *testing.T) {
	change := func(c *rowraftv1.MetaCommand, f func(*rowraftv1.ReportScoreRequest)) *rowraftv1.MetaCommand {
		f(c.GetReportScore())
		return c
	}
	a := newApplier(t)
	a.do(cmdInit("c"))
	plan := metacmd.WithData(1000, 100, 1)
	id := a.enter(metacmd.EnterJob("a", 1, plan)).Identity
	other := a.enter(metacmd.EnterJob("b", 2, plan)).Identity
	for i, tc := range []struct {
		c    *rowraftv1.MetaCommand
		want string
	}{
		{cmdScore(id, .5, 10, ""), ".5@10 none .5@10 0"},
		{cmdScore(id, .4, 20, ""), ".5@10 none .4@20 1"},
		{cmdScore(id, .4, 20, ""), ".5@10 none .4@20 1"},              // repeated
		{cmdScore(id, .5, 30, ""), ".5@10 none .5@30 2"},              // not better
		{cmdScore(other, .3, 30, ""), ".5@10 none .3@30 3"},           // of another trainer after as many steps
		{cmdScore(id, .5, 10, "/c/1"), ".5@10/c/1 .5@10/c/1 .3@30 3"}, // no score of its own
		{cmdScore(id, .6, 40, ""), ".6@40 .5@10/c/1 .6@40 0"},
		{cmdScore(id, .55, 50, "/c/2"), ".6@40 .55@50/c/2 .6@40 0"}, // not of the best one
		{change(cmdScore(id, .65, 60, ""), func(q *rowraftv1.ReportScoreRequest) { q.MinDelta = .1 }),
			".6@40 .55@50/c/2 .65@60 1"},
		{change(cmdScore(id, .1, 70, ""), func(q *rowraftv1.ReportScoreRequest) { q.LowerIsBetter = true }),
			".1@70 .55@50/c/2 .1@70 0"},
		{change(cmdScore(id, 9, 80, ""), func(q *rowraftv1.ReportScoreRequest) { q.Score.Metric = "rmse" }),
			"9@80 .55@50/c/2 9@80 0"}, // the first one of this metric
	} {
		got, isScores := a.do(tc.c).(*rowraftv1.JobScores)
		if !isScores || !proto.Equal(got, a.m.RunOf("ctr").GetScores()) {
			t.Errorf("%d: the answer is %v, the run has %v", i, got, a.m.RunOf("ctr").GetScores())
		}
		if s := strings.ReplaceAll(a.describe(), "0.", "."); s != tc.want {
			t.Errorf("%d: %s, want %s", i, s, tc.want)
		}
	}
	before := a.describe()
	for text, c := range map[string]*rowraftv1.MetaCommand{
		"finite": cmdScore(id, math.NaN(), 90, ""), "metric": change(cmdScore(id, 1, 90, ""),
			func(q *rowraftv1.ReportScoreRequest) { q.Score.Metric = strings.Repeat("x", 33) }),
		"min_delta": change(cmdScore(id, 1, 90, ""), func(q *rowraftv1.ReportScoreRequest) { q.MinDelta = math.Inf(1) }),
		"at most":   cmdScore(id, 1, 90, strings.Repeat("x", 2049)),
	} {
		a.refused(c, rowraft.CodeInvalidArgument, text)
	}
	a.ok(metacmd.LeaveJob(other, stopped))
	a.refused(cmdScore(other, .9, 99, ""), rowraft.CodeSessionExpired, "left")
	// A worker that is started again continues the run, and finds its scores.
	a.ok(metacmd.LeaveJob(id, lost))
	again := a.enter(metacmd.EnterJob("a", 3, plan)).Identity
	if got := a.describe(); got != before {
		t.Errorf("after a restart: %s, want %s", got, before)
	}
	// The next run has none.
	a.ok(metacmd.LeaveJob(again, stopped))
	a.enter(metacmd.EnterJob("a", 4, func(q *rowraftv1.EnterRequest) { plan(q); q.Checkpoint = "x" }))
	if got := a.describe(); got != "none none none 0" {
		t.Errorf("the next run begins with the scores %s", got)
	}
}

// The first reason to stop a job stays, also after its workers have left; a worker that enters again clears it.
func TestReasonOfAStop(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c"))
	id := a.enter(metacmd.EnterJob("a", 1, nil)).Identity
	other := a.enter(metacmd.EnterJob("b", 2, nil)).Identity
	stop := cmdStopJob(id.Run)
	stop.GetStopJob().Reason = "it is good enough"
	a.ok(stop)
	a.ok(cmdStopJob(id.Run))
	if r := a.m.RunOf("ctr"); r.GetReason() != "it is good enough" || !r.GetStopping() {
		t.Errorf("stopping %v, because %q", r.GetStopping(), r.GetReason())
	}
	a.ok(metacmd.LeaveJob(id, stopped))
	a.ok(metacmd.LeaveJob(other, stopped))
	if r := a.m.RunOf("ctr"); r.GetReason() != "it is good enough" || r.GetState() != jobStopped {
		t.Errorf("it is %v, because %q", r.GetState(), r.GetReason())
	}
	a.enter(metacmd.EnterJob("a", 3, nil))
	if r := a.m.RunOf("ctr"); r.GetReason() != "" {
		t.Errorf("it runs, because %q", r.GetReason())
	}
}
