package diagnosis

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// work reports running operations and moves.
func (d *diagnosis) work() {
	for _, o := range d.st.GetOperations() {
		if o.GetState() != rowraftv1.OperationState_OPERATION_STATE_RUNNING {
			continue
		}
		d.add(aNote, "operation-runs", fmt.Sprintf("operation %d", o.GetId()),
			fmt.Sprintf("rowraft operation watch %d", o.GetId()),
			"Operation %d, %s of %s, has %d of %d left%s.", o.GetId(), OperationName(o.GetKind()),
			cmp.Or(o.GetName(), o.GetNode()), o.GetLeft(), o.GetTotal(), waits(o.GetWaitingFor()))
	}
	for _, m := range d.st.GetMoves() {
		mv := m.GetMove()
		way := "from " + d.label(mv.GetFrom().GetNode()) + " to " + d.label(mv.GetTo().GetNode())
		switch {
		case mv.GetFrom() == nil:
			way = "new on " + d.label(mv.GetTo().GetNode())
		case mv.GetTo() == nil:
			way = "off " + d.label(mv.GetFrom().GetNode())
		}
		d.add(aNote, "move-runs", fmt.Sprintf("shard %d", mv.GetShard()),
			fmt.Sprintf("rowraft operation watch %d", mv.GetId()),
			"Shard %d: a replica moves, %s, in phase %s%s.", mv.GetShard(), way, meta.PhaseName(mv.GetPhase()),
			waits(m.GetWaitingFor()))
	}
}

// failureShown is how long a status shows that a job has failed. `rowraft job list` shows it for as long as the job is
// kept.
const failureShown = 24 * time.Hour

// Job returns the problems of a training job.
func Job(j *rowraftv1.JobInfo, now time.Time) []*rowraftv1.Problem {
	d := &diagnosis{}
	if j.GetState() != rowraftv1.JobState_JOB_STATE_RUNNING {
		ago := now.Sub(time.Unix(0, int64(j.GetIdleSinceNs())))
		if j.GetState() == rowraftv1.JobState_JOB_STATE_FAILED && ago < failureShown {
			d.add(aNote, "job-failed", "job "+j.GetJob(),
				"start its trainers again; it continues from its last checkpoint if it has one. This note ends after 24 hours; "+
					"`rowraft job delete "+j.GetJob()+"` removes it now", "Job %s has failed: %s.", j.GetJob(),
				strings.TrimSuffix(j.GetReason(), "."))
		}
		return d.out
	}
	var silent, lost []string
	training, idle := 0, 0
	for _, m := range j.GetMembers() {
		switch m.GetMember().GetState() {
		case rowraftv1.MemberState_MEMBER_STATE_TRAINING:
			training++
			if j.GetLeaseNs() > 0 && m.GetSinceHeardNs() > j.GetLeaseNs()/2 {
				silent = append(silent, fmt.Sprintf("%s (%s)", m.GetMember().GetWorker(), rounded(m.GetSinceHeardNs())))
			}
			if m.GetBeat() != nil && m.GetBeat().GetStepsPerSecond() == 0 {
				idle++
			}
		case rowraftv1.MemberState_MEMBER_STATE_LOST, rowraftv1.MemberState_MEMBER_STATE_FAILED:
			lost = append(lost, m.GetMember().GetWorker())
		}
	}
	describe := "rowraft job describe " + j.GetJob()
	switch add := func(kind, next, text string, args ...any) {
		d.add(warning, kind, "job "+j.GetJob(), next, "Job "+j.GetJob()+": "+text, args...)
	}; {
	case len(silent) > 0:
		add("job-worker-silent", describe, "nothing is heard of %s.", strings.Join(silent, ", "))
	case len(lost) > 0:
		add("job-short-of-workers", "start them again under the same names; "+describe, "%d of %d workers train; gone: %s.",
			training, j.GetWorkers(), strings.Join(lost, ", "))
	case training > 0 && idle == training:
		add("job-stalled", describe+"; a shard without a leader, or a step that waits for a worker, holds it",
			"none of its %d workers makes steps.", training)
	}
	return d.out
}

// PolicyIdle is the state of a policy whose job does not train: it makes no checkpoint then.
const PolicyIdle = "idle"

// lateCheckpoint is the time, beyond two intervals of its policy, after which a checkpoint is missing.
const lateCheckpoint = time.Minute

// Policy returns the problems of a checkpoint policy.
func Policy(p *rowraftv1.PolicyStatus, now time.Time) []*rowraftv1.Problem {
	d := &diagnosis{}
	name, r := p.GetPolicy().GetName(), p.GetRecord()
	ago := func(ns uint64) time.Duration { return now.Sub(time.Unix(0, int64(ns))) }
	since, last := ago(r.GetSetNs()), "none was ever made"
	if made := r.GetMade(); len(made) > 0 {
		newest := made[len(made)-1]
		since = ago(newest.GetBegunNs())
		last = fmt.Sprintf("the last one, %s, is %v old", newest.GetName(), since.Round(time.Second))
	}
	every := time.Duration(p.GetPolicy().GetEveryNs())
	describe := "rowraft checkpoint policy describe " + name
	switch {
	case r.GetFailures() > 0:
		d.add(warning, "policy-fails", "policy "+name, "read the error and remove its cause; "+describe,
			"Checkpoint policy %s has failed %d time(s) in a row, %s: %s.", name, r.GetFailures(), last,
			strings.TrimSuffix(r.GetError(), "."))
	case p.GetState() == PolicyIdle || every <= 0:
	case r.GetRunning() != "":
		if took := ago(r.GetBegunNs()); took > 2*every+lateCheckpoint {
			d.add(warning, "checkpoint-late", "policy "+name, "look at its destination; "+describe,
				"Checkpoint policy %s, due every %v, has been making %s for %v; %s.", name, every, r.GetRunning(),
				took.Round(time.Second), last)
		}
	case since > 2*every+lateCheckpoint && ago(r.GetSetNs()) > 2*every+lateCheckpoint:
		d.add(warning, "checkpoint-late", "policy "+name, describe,
			"Checkpoint policy %s is due every %v, and %s.", name, every, last)
	}
	if r.GetRetentionError() != "" {
		d.add(warning, "policy-retention-fails", "policy "+name,
			"read the error and remove its cause; the checkpoints: rowraft checkpoint list "+p.GetPolicy().GetDestination(),
			"The retention of checkpoint policy %s reports: %s.", name, r.GetRetentionError())
	}
	return d.out
}
