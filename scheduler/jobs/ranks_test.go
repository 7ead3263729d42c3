package jobs

import (
	"testing"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// TestRanksOfTheLastRun: the second worker of a new run, whose members are no longer those
// of the run before, had a rank there too.
func TestRanksOfTheLastRun(t *testing.T) {
	var l lastRanks
	job := func(members ...string) []*rowraftv1.JobStatus {
		return []*rowraftv1.JobStatus{{Job: "other", Members: []string{"c", "a"}}, {Job: "ctr", Members: members}}
	}
	for _, step := range []struct {
		jobs   []*rowraftv1.JobStatus
		worker string
		want   int
	}{
		{nil, "a", -1},
		{job("a", ""), "b", -1},
		{job("a", "b"), "b", 1}, // the run is over, and b begins the next
		{job("b", ""), "a", 0},
		{job("b", "a"), "a", 1},
		{job("b", "a"), "c", -1}, // of another job only
	} {
		if got := l.before(step.jobs, "ctr", step.worker); got != step.want {
			t.Errorf("worker %s, members %v: rank %d before, want %d", step.worker, step.jobs, got, step.want)
		}
	}
}
