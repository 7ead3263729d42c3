package checkpoints

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
	"github.com/rowraft/rowraft/internal/ticks"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

const (
	policyTick = 500 * time.Millisecond
	// policyRetry is the wait after the first failure. It doubles with each failure, up to the interval of the policy.
	policyRetry = 30 * time.Second
	// policyPatience bounds the wait for another checkpoint or restore.
	policyPatience = time.Minute
)

// RunPolicies is the control loop of checkpoint policies. While this member leads the scheduler, it makes the
// checkpoints that are due, one at a time for each destination.
func (c *Service) RunPolicies(ctx context.Context) {
	tick := ticks.New(policyTick)
	defer tick.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := c.lead.Leading(); err != nil {
			continue
		}
		for _, p := range c.duePolicies(time.Now()) {
			run := runOfPolicy(p)
			if c.policyRuns.try(run, opens) != nil {
				continue // a policy with the same destination is running
			}
			wg.Go(func() {
				defer c.policyRuns.leave(run)
				if err := c.runIfDue(ctx, run.what); err != nil && ctx.Err() == nil {
					c.logger.Warn("a checkpoint policy failed", "policy", run.what, "err", err)
				}
			})
		}
	}
}

// runOfPolicy returns the task that excludes policies with the same destination.
func runOfPolicy(p *meta.Policy) *task {
	return &task{what: p.GetPolicy().GetName(), destination: p.GetPolicy().GetDestination()}
}

// duePolicies returns the policies that are due, the longest overdue first.
func (c *Service) duePolicies(now time.Time) []*meta.Policy {
	at := make(map[*meta.Policy]time.Time)
	for _, p := range c.machine.Policies() {
		if next, due := c.due(p, now); due && !next.After(now) {
			at[p] = next
		}
	}
	return slices.SortedFunc(maps.Keys(at), func(a, b *meta.Policy) int { return at[a].Compare(at[b]) })
}

// runIfDue is runPolicy if the policy is still due: a run may have ended since the caller checked.
func (c *Service) runIfDue(ctx context.Context, name string) error {
	p := c.machine.PolicyOf(name)
	if p == nil {
		return nil
	}
	if next, due := c.due(p, time.Now()); !due || next.After(time.Now()) {
		return nil
	}
	return c.runPolicy(ctx, name)
}

// due returns the time of a policy's next run; false while no trainer of its job is connected.
func (c *Service) due(p *meta.Policy, now time.Time) (next time.Time, ok bool) {
	spec, r := p.GetPolicy(), p.GetRecord()
	every := time.Duration(spec.GetEveryNs())
	last := int64(max(r.GetSetNs(), r.GetBegunNs()))
	wait := every
	// A checkpoint on request is one of the moment of the request: a later one would take its place.
	if n := r.GetFailures(); n > 0 && every < meta.MaxPolicyEvery {
		wait = min(every, policyRetry<<min(n-1, uint32(bits.Len64(uint64(meta.MaxPolicyEvery/policyRetry)))))
	}
	next = time.Unix(0, last).Add(wait)
	if next.After(now.Add(every)) {
		next = now // the clock was ahead at the last run
	}
	if r.GetRunning() != "" {
		next = now // an earlier leader began the run, and this one must end it
	}
	return next, spec.GetJob() == "" || c.trainers.Trains(spec.GetJob()) || r.GetRunning() != ""
}

// runPolicyNow runs a policy on request, after the running policy with the same destination. If it first ends the run
// of an earlier leader, it still makes a checkpoint of its own.
func (c *Service) runPolicyNow(ctx context.Context, name string) error {
	p := c.machine.PolicyOf(name)
	if p == nil {
		return rowraft.Errorf(rowraft.CodeNotFound, "there is no checkpoint policy %q", name)
	}
	run := runOfPolicy(p)
	if err := c.policyRuns.enter(ctx, meta.MaxPolicyEvery, run, opens); err != nil {
		return rowraft.Errorf(rowraft.CodeOverloaded, "another checkpoint policy is still running: %w", err)
	}
	defer c.policyRuns.leave(run)
	if c.machine.PolicyOf(name).GetRecord().GetRunning() != "" {
		if err := c.runPolicy(ctx, name); err != nil {
			return err
		}
	}
	return c.runPolicy(ctx, name)
}

// runPolicy makes the next checkpoint of a policy and then deletes those that the policy need not keep. It logs the run
// before and after, so that the next leader can end a run that was interrupted. REQUIRES: policyRuns holds the run.
func (c *Service) runPolicy(ctx context.Context, name string) error {
	p := c.machine.PolicyOf(name)
	if p == nil {
		return rowraft.Errorf(rowraft.CodeNotFound, "there is no checkpoint policy %q", name)
	}
	if running := p.GetRecord().GetRunning(); running != "" {
		return c.endForeignRun(ctx, p.GetPolicy(), running)
	}
	// The name has milliseconds: two runs of a policy in one second must not have one name.
	begun := time.Now()
	made := fmt.Sprintf("%s-%s", name, begun.UTC().Format("20060102T150405.000Z"))
	err := c.lead.Propose(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_BeginPolicyRun{BeginPolicyRun: &rowraftv1.MetaBeginPolicyRun{
			Name: name, Checkpoint: made,
		}}})
	if err != nil {
		return err
	}
	delta, err := c.makeFor(ctx, p, made)
	if ctx.Err() != nil {
		return ctx.Err() // this server stops: the next leader ends the run
	}
	if lerr := c.logRun(ctx, name, made, delta, err); lerr != nil {
		return lerr
	}
	if err != nil {
		return err
	}
	return c.retain(ctx, name)
}

// makeFor makes one checkpoint. It makes a delta to the policy's last checkpoint if the policy permits that.
func (c *Service) makeFor(ctx context.Context, p *meta.Policy, name string) (delta bool, err error) {
	spec := p.GetPolicy()
	if err := c.mayRun(ctx, spec); err != nil {
		return false, err
	}
	req := &rowraftv1.CreateCheckpointRequest{Destination: spec.GetDestination(), Name: name, Job: spec.GetJob(),
		SkipAbsent: spec.GetSkipAbsent()}
	create := func() error {
		_, err := c.create(ctx, policyPatience, &creation{req: req, report: func(*rowraftv1.CreateCheckpointReply) error {
			return nil
		}})
		return err
	}
	if req.Base = deltaTo(p); req.Base != "" {
		err = create()
		if err == nil || rowraft.CodeOf(err).Retryable() || rowraft.CodeOf(err) == rowraft.CodePrecondition {
			return true, err
		}
		c.logger.Info("a checkpoint policy makes a full checkpoint where a delta was due", "policy", spec.GetName(), "err",
			err)
		req.Base = ""
	}
	return false, create()
}

// deltaTo returns the checkpoint that is the base of the policy's next one; "" if the next one is full.
func deltaTo(p *meta.Policy) string {
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

func (c *Service) logRun(ctx context.Context, name, made string, delta bool, failure error) error {
	return c.lead.Propose(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EndPolicyRun{EndPolicyRun: &rowraftv1.MetaEndPolicyRun{
			Name: name, Checkpoint: made, Delta: delta, Error: failureText(failure),
		}}})
}

// endForeignRun ends a run that an earlier leader began. If the checkpoint exists, it counts as made; otherwise its
// files are deleted.
func (c *Service) endForeignRun(ctx context.Context, spec *rowraftv1.CheckpointPolicy, running string) error {
	d, err := depot.Open(spec.GetDestination())
	if err != nil {
		return err
	}
	m, err := checkpoint.ReadManifest(ctx, depot.At(d, running))
	if err == nil {
		return c.logRun(ctx, spec.GetName(), running, m.Parent != nil, nil)
	}
	failure := rowraft.Errorf(rowraft.CodeLeadershipLost, "the scheduler's leader changed while checkpoint %s was made",
		running)
	if rowraft.CodeOf(err) != rowraft.CodeNotFound {
		failure = fmt.Errorf("%w, and it cannot be read: %w", failure, err)
	} else if _, _, err := depot.Delete(ctx, d, running, false); err != nil &&
		rowraft.CodeOf(err) != rowraft.CodeNotFound {
		failure = fmt.Errorf("%w; its leavings stay: %w", failure, err)
	}
	return c.logRun(ctx, spec.GetName(), running, false, failure)
}

// failureText returns the text of an error for a record; "" for nil.
func failureText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
