package meta

import (
	"math"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Limits of a score.
const (
	maxMetricBytes = 32
	maxScorePath   = 2 << 10
)

// reportScore records a score of a run and returns the record. The caller must be a member that trains.
func (g *registry) reportScore(q *rowraftv1.ReportScoreRequest) (*rowraftv1.JobScores, error) {
	s := q.GetScore()
	if err := checkScore(s); err != nil {
		return nil, err
	}
	if d := q.GetMinDelta(); !(d >= 0) || math.IsInf(d, 0) {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "a score's min_delta is %v: want a number ≥ 0", d)
	}
	old, _, err := g.trainingMember(q.GetIdentity())
	if err != nil {
		return nil, err
	}
	was := old.GetScores()
	if s.GetCheckpoint() == "" && was.GetLast().GetStep() == s.GetStep() &&
		was.GetLastIncarnation() == q.GetIdentity().GetIncarnation() {
		return was, nil // the call is repeated: its answer was lost
	}
	r := proto.CloneOf(old)
	if r.Scores == nil {
		r.Scores = &rowraftv1.JobScores{}
	}
	now := r.Scores
	if s.GetCheckpoint() != "" {
		if now.Saved = s; sameScore(now.GetBest(), s) {
			now.Best = s
		}
	} else {
		now.Last, now.LastIncarnation = s, q.GetIdentity().GetIncarnation()
		if now.Best == nil || now.Best.GetMetric() != s.GetMetric() || isBetter(s, now.Best, q) {
			now.Best, now.SinceBest = s, 0
		} else if now.SinceBest < math.MaxUint32 {
			now.SinceBest++
		}
	}
	g.putRun(r)
	return now, nil
}

// isBetter reports whether a is better than b by more than the request's min_delta.
func isBetter(a, b *rowraftv1.JobScore, q *rowraftv1.ReportScoreRequest) bool {
	d := a.GetValue() - b.GetValue()
	if q.GetLowerIsBetter() {
		d = -d
	}
	return d > q.GetMinDelta()
}

// sameScore reports whether a and b are one score, whatever checkpoint they name.
func sameScore(a, b *rowraftv1.JobScore) bool {
	return a.GetMetric() == b.GetMetric() && a.GetValue() == b.GetValue() && a.GetStep() == b.GetStep()
}

// checkScore refuses an invalid score.
func checkScore(s *rowraftv1.JobScore) error {
	switch v := s.GetValue(); {
	case s.GetMetric() == "" || len(s.GetMetric()) > maxMetricBytes:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "a score's metric has %d bytes: want 1 to %d", len(s.GetMetric()),
			maxMetricBytes)
	case math.IsNaN(v) || math.IsInf(v, 0):
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "a score is %v: want a finite number", v)
	case len(s.GetCheckpoint()) > maxScorePath:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "a score's checkpoint has %d bytes: want at most %d",
			len(s.GetCheckpoint()), maxScorePath)
	}
	return nil
}

// checkScores checks the scores of a run in a snapshot.
func checkScores(all *rowraftv1.JobScores) error {
	for _, s := range []*rowraftv1.JobScore{all.GetBest(), all.GetSaved(), all.GetLast()} {
		if s == nil {
			continue
		}
		if err := checkScore(s); err != nil {
			return err
		}
	}
	return nil
}
