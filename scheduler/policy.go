package scheduler

import (
	"context"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	policyTick = 500 * time.Millisecond
	// policyRetry is how long after a failure the next try comes; it doubles, up to
	// the policy's own interval.
	policyRetry = 30 * time.Second
	// policyPatience is how long a run waits for another checkpoint or restore.
	policyPatience = time.Minute
)

// runPolicies makes the checkpoints that are due while this member leads the metadata group, one at a time to each
// destination.
func (s *Scheduler) runPolicies(ctx context.Context) {
	tick := time.NewTicker(policyTick)
	defer tick.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, _, err := s.leading(); err != nil {
			continue
		}
		for _, p := range s.duePolicies(time.Now()) {
			run := runOfPolicy(p)
			if s.policyRuns.try(run, opens) != nil {
				continue // one to its destination runs
			}
			wg.Go(func() {
				defer s.policyRuns.leave(run)
				if err := s.runIfDue(ctx, run.what); err != nil && ctx.Err() == nil {
					s.logger.Warn("a checkpoint policy failed", "policy", run.what, "err", err)
				}
			})
		}
	}
}

// runOfPolicy is what runs of policies exclude each other by.
func runOfPolicy(p *policy) *task {
	return &task{what: p.GetPolicy().GetName(), destination: p.GetPolicy().GetDestination()}
}

// duePolicies returns the policies that are due, the longest due first.
func (s *Scheduler) duePolicies(now time.Time) []*policy {
	at := make(map[*policy]time.Time)
	for _, p := range s.machine.policies() {
		if next, due := s.due(p, now); due && !next.After(now) {
			at[p] = next
		}
	}
	return slices.SortedFunc(maps.Keys(at), func(a, b *policy) int { return at[a].Compare(at[b]) })
}

// runIfDue is runPolicy, unless a run ended that the caller did not know of.
func (s *Scheduler) runIfDue(ctx context.Context, name string) error {
	p := s.machine.policy(name)
	if p == nil {
		return nil
	}
	if next, due := s.due(p, time.Now()); !due || next.After(time.Now()) {
		return nil
	}
	return s.runPolicy(ctx, name)
}

// due returns when a policy runs next, and false if that hangs on its job.
func (s *Scheduler) due(p *policy, now time.Time) (next time.Time, ok bool) {
	spec, r := p.GetPolicy(), p.GetRecord()
	every := time.Duration(spec.GetEveryNs())
	last := int64(max(r.GetSetNs(), r.GetBegunNs()))
	wait := every
	if n := r.GetFailures(); n > 0 {
		wait = min(every, policyRetry<<min(n-1, uint32(bits.Len64(uint64(maxPolicyEvery/policyRetry)))))
	}
	next = time.Unix(0, last).Add(wait)
	if next.After(now.Add(every)) {
		next = now // the clock was ahead when it ran last
	}
	if r.GetRunning() != "" {
		next = now // by an earlier leader, and is to be ended
	}
	return next, spec.GetJob() == "" || s.trains(spec.GetJob()) || r.GetRunning() != ""
}

// trains reports that a trainer of the job is there, and waits for no others to begin.
func (s *Scheduler) trains(job string) bool {
	return !s.jobWaits(job) && slices.ContainsFunc(s.attendance.list(), func(a *attendee) bool { return a.id.job == job })
}

// runPolicyNow waits for the run of a policy to the same destination, then is runPolicy. It makes one of its own also
// where an earlier leader's run has to be ended first.
func (s *Scheduler) runPolicyNow(ctx context.Context, name string) error {
	p := s.machine.policy(name)
	if p == nil {
		return rowraft.Errorf(rowraft.CodeNotFound, "there is no checkpoint policy %q", name)
	}
	run := runOfPolicy(p)
	if err := s.policyRuns.enter(ctx, maxPolicyEvery, run, opens); err != nil {
		return rowraft.Errorf(rowraft.CodeOverloaded, "another checkpoint policy is still running: %w", err)
	}
	defer s.policyRuns.leave(run)
	if s.machine.policy(name).GetRecord().GetRunning() != "" {
		if err := s.runPolicy(ctx, name); err != nil {
			return err
		}
	}
	return s.runPolicy(ctx, name)
}

// runPolicy makes the next checkpoint of a policy, then removes those that it need
// not keep. What it did is logged before and afterwards, so that the next leader goes
// on with it.
// REQUIRES: policyRuns holds the run.
func (s *Scheduler) runPolicy(ctx context.Context, name string) error {
	p := s.machine.policy(name)
	if p == nil {
		return rowraft.Errorf(rowraft.CodeNotFound, "there is no checkpoint policy %q", name)
	}
	if running := p.GetRecord().GetRunning(); running != "" {
		return s.endForeignRun(ctx, p.GetPolicy(), running)
	}
	begun := time.Now()
	made := fmt.Sprintf("%s-%s", name, begun.UTC().Format("20060102T150405.000Z"))
	err := s.proposeCommand(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_BeginPolicyRun{BeginPolicyRun: &rowraftv1.MetaBeginPolicyRun{
		Name: name, Checkpoint: made, AtNs: uint64(begun.UnixNano()),
	}}})
	if err != nil {
		return err
	}
	delta, err := s.makeFor(ctx, p, made)
	if ctx.Err() != nil {
		return ctx.Err() // this server stops: the next leader finds out what came of it
	}
	if lerr := s.logRun(ctx, name, made, delta, err); lerr != nil {
		return lerr
	}
	if err != nil {
		return err
	}
	return s.retain(ctx, name)
}

// makeFor makes one checkpoint, as a delta to the policy's last one if it may be.
func (s *Scheduler) makeFor(ctx context.Context, p *policy, name string) (delta bool, err error) {
	spec := p.GetPolicy()
	if err := s.mayRun(ctx, spec); err != nil {
		return false, err
	}
	req := &rowraftv1.CreateCheckpointRequest{Destination: spec.GetDestination(), Name: name, Job: spec.GetJob(), SkipAbsent: spec.GetSkipAbsent()}
	create := func() error {
		_, err := s.checkpoints.create(ctx, policyPatience, &creation{req: req, report: func(*rowraftv1.CreateCheckpointReply) error { return nil }})
		return err
	}
	if req.Base = deltaTo(p); req.Base != "" {
		err = create()
		if err == nil || rowraft.CodeOf(err).Retryable() || rowraft.CodeOf(err) == rowraft.CodePrecondition {
			return true, err
		}
		s.logger.Info("a checkpoint policy makes a full checkpoint where a delta was due", "policy", spec.GetName(), "err", err)
		req.Base = ""
	}
	return false, create()
}

// deltaTo returns the checkpoint that the policy's next one is a delta to, "" if it
// is to be full.
func deltaTo(p *policy) string {
	made := p.GetRecord().GetMade()
	if p.GetPolicy().GetFullEvery() < 2 || len(made) == 0 {
		return ""
	}
	deltas := uint32(0)
	for i := len(made) - 1; i >= 0 && made[i].GetDelta(); i-- {
		deltas++
	}
	if deltas+1 >= p.GetPolicy().GetFullEvery() {
		return ""
	}
	return made[len(made)-1].GetName()
}

func (s *Scheduler) logRun(ctx context.Context, name, made string, delta bool, failure error) error {
	return s.proposeCommand(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EndPolicyRun{EndPolicyRun: &rowraftv1.MetaEndPolicyRun{
		Name: name, Checkpoint: made, Delta: delta, Error: errorText(failure),
	}}})
}

// endForeignRun ends a run that an earlier leader began: the checkpoint is there, or
// what is left of it goes.
func (s *Scheduler) endForeignRun(ctx context.Context, spec *rowraftv1.CheckpointPolicy, running string) error {
	d, err := depot.Open(spec.GetDestination())
	if err != nil {
		return err
	}
	m, err := checkpoint.ReadManifest(ctx, depot.At(d, running))
	if err == nil {
		return s.logRun(ctx, spec.GetName(), running, m.Parent != nil, nil)
	}
	failure := rowraft.Errorf(rowraft.CodeLeadershipLost, "the scheduler's leader changed while checkpoint %s was made", running)
	if rowraft.CodeOf(err) != rowraft.CodeNotFound {
		failure = fmt.Errorf("%w, and it cannot be read: %w", failure, err)
	} else if _, _, err := depot.Delete(ctx, d, running, false); err != nil && rowraft.CodeOf(err) != rowraft.CodeNotFound {
		failure = fmt.Errorf("%w; its leavings stay: %w", failure, err)
	}
	return s.logRun(ctx, spec.GetName(), running, false, failure)
}
