package meta

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
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
func (g *registry) roomForJob(q *rowraftv1.EnterRequest) error {
	// The job is counted already.
	if g.run(q.GetJob()) != nil {
		return nil
	}
	if len(g.runs) >= MaxJobs {
		return fullOf(q.GetJob(), "the cluster", MaxJobs, g.runs)
	}
	owner := OwnerOf(&rowraftv1.MetaRun{Settings: q.GetSettings()})
	if owner == "" {
		return nil
	}
	own := slices.DeleteFunc(slices.Clone(g.runs), func(r *rowraftv1.MetaRun) bool { return OwnerOf(r) != owner })
	if len(own) >= maxOwnerJobs {
		return fullOf(q.GetJob(), owner, maxOwnerJobs, own)
	}
	return nil
}

// fullOf returns the error of a full quota. It names the jobs to delete: first those that have been idle longest, then
// those with training workers.
func fullOf(job, whose string, most int, runs []*rowraftv1.MetaRun) error {
	trains := func(r *rowraftv1.MetaRun) int { return min(1, len(TrainingRanks(r))) }
	runs = slices.SortedStableFunc(slices.Values(runs), func(a, b *rowraftv1.MetaRun) int {
		return cmp.Or(trains(a)-trains(b), cmp.Compare(a.GetIdleSinceNs(), b.GetIdleSinceNs()))
	})
	var names []string
	for _, r := range runs[:min(len(runs), namedJobs)] {
		names = append(names, fmt.Sprintf("%s (%s)", r.GetJob(),
			strings.ToLower(strings.TrimPrefix(r.GetState().String(), "JOB_STATE_"))))
	}
	more := ""
	if n := len(runs) - len(names); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return rowraft.Errorf(rowraft.CodePrecondition,
		"job %s: %s has %d jobs, the limit: %s%s; delete one without training workers with `rowraft job delete NAME`", job,
		whose, most, strings.Join(names, ", "), more)
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

// IsExpired reports whether the registry may delete a run.
func IsExpired(r *rowraftv1.MetaRun, atNs uint64) bool {
	since := r.GetIdleSinceNs()
	return since > 0 && atNs > since && atNs-since >= uint64(keptFor(r))
}

// forgetJob deletes a run from the registry.
func (g *registry) forgetJob(c *rowraftv1.MetaForgetJob, nowNs uint64) error {
	r := g.run(c.GetJob())
	switch {
	case r == nil || !bytes.Equal(r.GetRun(), c.GetRun()):
		if c.GetAsked() {
			return rowraft.Errorf(rowraft.CodeNotFound, "job %s has no such run: it was deleted, or a new run has begun",
				c.GetJob())
		}
		return nil
	case len(TrainingRanks(r)) > 0:
		return rowraft.Errorf(rowraft.CodePrecondition,
			"job %s: %d workers train in it; stop it first with `rowraft job stop %s`", c.GetJob(), len(TrainingRanks(r)),
			c.GetJob())
	case !c.GetAsked() && !IsExpired(r, nowNs):
		return nil // its members came back and left again in between
	}
	g.endRun(r)
	g.endRun(r.GetPrevious())
	g.runs = slices.DeleteFunc(slices.Clone(g.runs), func(o *rowraftv1.MetaRun) bool { return o == r })
	return nil
}

// CheckRoom checks the state that this member has applied. It gives the error early; the command decides.
func (m *Machine) CheckRoom(q *rowraftv1.EnterRequest) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.registry.roomForJob(q)
}

// ownerSetting is the setting of a run that names its owner. The server writes it, from the name in the certificate.
// All workers of a run must have the same settings, so a worker with another name cannot become a member. Without TLS
// there is no owner.
const ownerSetting = "owner"

// SetOwner writes the caller's name into the settings of an entering worker.
func SetOwner(caller *rpc.Caller, q *rowraftv1.EnterRequest) {
	q.Settings = slices.DeleteFunc(q.Settings, func(x *rowraftv1.JobSetting) bool { return x.GetName() == ownerSetting })
	if caller != nil {
		q.Settings = append(q.Settings, &rowraftv1.JobSetting{Name: ownerSetting, Value: caller.Name})
	}
}

// OwnerOf returns the owner of a run; "" if it has none.
func OwnerOf(r *rowraftv1.MetaRun) string {
	for _, x := range r.GetSettings() {
		if x.GetName() == ownerSetting {
			return x.GetValue()
		}
	}
	return ""
}
