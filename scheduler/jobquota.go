package scheduler

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	// maxOwnerJobs bounds the jobs of one owner, so that one owner cannot use up MaxJobs.
	maxOwnerJobs = 256
	// The registry keeps a job without training workers for a limited time: keepDone if it is done or has failed,
	// keepStopped if it can resume, keepUnattended if its workers entered and never called Attend.
	keepDone       = 7 * 24 * time.Hour
	keepStopped    = 30 * 24 * time.Hour
	keepUnattended = 10 * time.Minute
	// namedJobs bounds the jobs that an error names.
	namedJobs = 8
)

// roomForJob refuses a job beyond the limit of its owner or of the cluster, and names jobs to delete.
func (s *state) roomForJob(q *rowraftv1.EnterRequest) error {
	if s.run(q.GetJob()) != nil {
		return nil
	}
	if len(s.runs) >= MaxJobs {
		return fullOf(q.GetJob(), "the cluster", MaxJobs, s.runs)
	}
	owner := ownerOf(&rowraftv1.MetaRun{Settings: q.GetSettings()})
	if owner == "" {
		return nil
	}
	own := slices.DeleteFunc(slices.Clone(s.runs), func(r *rowraftv1.MetaRun) bool { return ownerOf(r) != owner })
	if len(own) >= maxOwnerJobs {
		return fullOf(q.GetJob(), owner, maxOwnerJobs, own)
	}
	return nil
}

// fullOf returns the error of a full quota. It names the jobs to delete: first those that have been idle longest, then
// those with training workers.
func fullOf(job, whose string, most int, runs []*rowraftv1.MetaRun) error {
	trains := func(r *rowraftv1.MetaRun) int { return min(1, len(trainingRanks(r))) }
	runs = slices.SortedStableFunc(slices.Values(runs), func(a, b *rowraftv1.MetaRun) int {
		return cmp.Or(trains(a)-trains(b), cmp.Compare(a.GetIdleSinceNs(), b.GetIdleSinceNs()))
	})
	var names []string
	for _, r := range runs[:min(len(runs), namedJobs)] {
		names = append(names, fmt.Sprintf("%s (%s)", r.GetJob(), strings.ToLower(strings.TrimPrefix(r.GetState().String(), "JOB_STATE_"))))
	}
	more := ""
	if n := len(runs) - len(names); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return rowraft.Errorf(rowraft.CodePrecondition, "job %s: %s has %d jobs, the most there can be: %s%s; delete one in which nobody trains with `rowraft job delete NAME`", job, whose, most, strings.Join(names, ", "), more)
}

// keptFor returns how long the registry keeps a run without training workers.
func keptFor(r *rowraftv1.MetaRun) time.Duration {
	switch {
	case !r.GetAttended():
		return keepUnattended
	case r.GetState() == rowraftv1.JobState_JOB_STATE_DONE, r.GetState() == rowraftv1.JobState_JOB_STATE_FAILED:
		return keepDone
	}
	return keepStopped
}

// expired reports whether the registry may delete a run.
func expired(r *rowraftv1.MetaRun, atNs uint64) bool {
	since := r.GetIdleSinceNs()
	return since > 0 && atNs > since && atNs-since >= uint64(keptFor(r))
}

// forgetJob deletes a run from the registry.
func (s *state) forgetJob(c *rowraftv1.MetaForgetJob) error {
	r := s.run(c.GetJob())
	switch {
	case r == nil || !bytes.Equal(r.GetRun(), c.GetRun()):
		if c.GetAsked() {
			return rowraft.Errorf(rowraft.CodeNotFound, "there is no such run of job %s (any more)", c.GetJob())
		}
		return nil
	case len(trainingRanks(r)) > 0:
		return rowraft.Errorf(rowraft.CodePrecondition, "job %s: %d workers train in it; stop it first with `rowraft job stop %s`", c.GetJob(), len(trainingRanks(r)), c.GetJob())
	case !c.GetAsked() && !expired(r, c.GetAtNs()):
		return nil // its members came back and left again in between
	}
	s.endRun(r)
	s.runs = slices.DeleteFunc(slices.Clone(s.runs), func(o *rowraftv1.MetaRun) bool { return o == r })
	return nil
}

// roomForJob checks the state that this member has applied. It gives the error early; the command decides.
func (m *machine) roomForJob(q *rowraftv1.EnterRequest) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.roomForJob(q)
}

// forgetIdleJobs deletes the expired runs from the registry.
func (s *Scheduler) forgetIdleJobs(ctx context.Context) {
	now := uint64(time.Now().UnixNano())
	for _, r := range s.machine.allRuns() {
		if !expired(r, now) {
			continue
		}
		err := s.proposeCommand(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_ForgetJob{ForgetJob: &rowraftv1.MetaForgetJob{Job: r.GetJob(), Run: r.GetRun(), AtNs: now}}})
		if err != nil {
			return // the next round tries again
		}
		s.logger.Info("a job in which nobody has trained for long is forgotten", "job", r.GetJob(), "state", r.GetState().String())
	}
}

// DeleteJob deletes a job without training workers from the registry.
func (j *Jobs) DeleteJob(ctx context.Context, q *rowraftv1.DeleteJobRequest) (*rowraftv1.DeleteJobReply, error) {
	if _, err := j.find(ctx, q.GetJob()); err != nil {
		return nil, err
	}
	if err := j.checkOwner(ctx, q.GetJob()); err != nil {
		return nil, err
	}
	err := j.s.proposeCommand(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_ForgetJob{ForgetJob: &rowraftv1.MetaForgetJob{
		Job: q.GetJob(), Run: q.GetRun(), AtNs: uint64(time.Now().UnixNano()), Asked: true,
	}}})
	if err != nil {
		return nil, err
	}
	j.s.wakeJobs()
	j.s.logger.Info("a job is deleted", "job", q.GetJob())
	return &rowraftv1.DeleteJobReply{}, nil
}
