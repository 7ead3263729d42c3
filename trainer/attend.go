package trainer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer/member"
	"github.com/rowraft/rowraft/trainer/mode"
	"github.com/rowraft/rowraft/trainer/report"
)

// attend registers the run for the checkpoints of the cluster; it resumes from s unless s is nil. It calls onStop when
// an operator stops the job, and onMembers when its members change.
//
// Errors: CodePrecondition if the cluster's tables are not those of the checkpoint.
func (j *Job) attend(ctx context.Context, s *member.Saved, onStop func(reason string),
	onMembers func(jobs.Members)) (*jobs.Stream, error) {
	a := jobs.Registration{
		Pause: j.pausePoint.Serve(j.splits.Reached), Beat: j.beat, Announces: j.pausePoint.Paced(),
		Destinations: j.cfg.Checkpoint.WhenParked(),
	}
	for _, t := range j.ownTables() {
		a.Tables = append(a.Tables, t.ID)
	}
	a.OnMembers = func(m jobs.Members) {
		setMembers(j, m)
		onMembers(m)
	}
	a.OnStop = func(reason string) { j.stopping.Store(true); onStop(reason) }
	if s != nil {
		a.Checkpoint = s.ID
	}
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Patience)
	defer cancel()
	at, err := j.cfg.member.Register(ctx, a)
	if err != nil && s != nil && rowraft.CodeOf(err) == rowraft.CodePrecondition {
		return nil, fmt.Errorf("%w; to resume from the checkpoint, put the job's tables in place first, with its trainers "+
			"stopped: %s", err, s.RestoreCommand(j.ownTables()))
	}
	return at, err
}

// setMembers takes a new generation of the members of j.
func setMembers(j *Job, m jobs.Members) {
	j.ramp.Members(m.Ranks, j.cfg.rank())
	if j.hybrid != nil {
		j.hybrid.begin(m, &j.cfg)
	}
	if g, ok := j.mode.(*mode.Geo); ok { // a share of the mean of those that train now
		g.SetShare(j.cfg.Geo.share(j.ramp.Trainers()))
	}
}

// RunOn is Run on a cluster. It requires that [Enter] has entered the job. It resumes from s unless s is nil, takes
// part in the cluster's checkpoints, and makes those of the configuration. At the end it waits for the other trainers
// of its job, whose checkpoints need its state.
func (j *Job) RunOn(ctx context.Context, c *client.Client, s *member.Saved) (*report.Result, error) {
	if s != nil {
		if err := errors.Join(j.Resume(s.State), s.CheckTables(j.ownTables())); err != nil {
			return nil, fmt.Errorf("resume from checkpoint %s: %w", s.Path, err)
		}
	}
	if j.cfg.Mode == Sync && j.cfg.member != nil {
		j.before.jobStep = max(j.before.jobStep, j.cfg.member.BaseStep)
	}
	train, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ms := member.New(member.Options{
		Job: j.cfg.Job, Rank: j.cfg.rank(), Trainers: j.cfg.Trainers, Patience: j.cfg.Patience, Lease: j.cfg.lease(),
		PushPatience: j.cfg.Patience,
		Checkpoint:   j.cfg.Checkpoint, Note: j.report.Note, Reached: j.splits.Reached,
	}, c, j.cfg.member)
	at, err := j.attend(ctx, s, func(reason string) { cancel(&jobStopped{reason}) }, ms.Update)
	if err != nil {
		ms.Leave(ctx, false, err)
		return nil, err
	}
	defer at.Close()
	told := context.AfterFunc(ctx, func() { j.stopping.Store(true) }) // the next beats report it
	defer told()
	var wg sync.WaitGroup
	defer wg.Wait()
	// Deferred after wg.Wait, so it runs first: the goroutine below ends with train.
	defer cancel(nil)
	wg.Go(func() {
		select {
		case <-at.Ended():
			if err := at.Err(); err != nil {
				cancel(err)
			}
		case <-train.Done():
		}
	})
	if err := errors.Join(ms.SetPolicy(ctx), j.join(train, ms)); err != nil {
		ms.Leave(ctx, false, err)
		return nil, err
	}
	if s == nil && j.cfg.Resume == "auto" {
		j.report.Note("RESUME AUTO FOUND NO CHECKPOINT TO RESUME FROM: this trainer begins at step 1, " +
			"or where its running job is")
	}
	if s == nil && j.cfg.continues != "" {
		j.report.Note("%s", j.cfg.continues)
	}
	if s != nil {
		j.report.Note("resuming from checkpoint %s after step %d", s.Path, s.State.Step)
	}
	if m := j.cfg.member; m != nil {
		prepareScores(j, m, func(saved string) (string, error) { return ms.SaveBest(ctx, saved) },
			func(reason string) error {
				stop, cancel := context.WithTimeout(ctx, member.LeavePatience)
				defer cancel()
				return m.Stop(stop, reason)
			})
	}
	r, err := j.run(train, func(r *report.Result) error {
		_, r.Stopped = stopOf(train)
		j.setTrained()
		ms.Leave(ctx, r.Interrupted, nil)
		if j.splits != nil && !r.Interrupted {
			if least, most, ok := ms.RepeatedExamples(ctx); ok {
				r.ReadAgainAtLeast, r.ReadAgainAtMost = &least, &most
			}
		}
		if s != nil {
			r.ResumedFrom = s.Path
		}
		var err error
		r.Checkpoint, r.Interrupted, err = ms.Park(ctx, at, r.Interrupted)
		return err
	})
	// The registration may have ended with an error.
	if _, stopped := stopOf(train); ctx.Err() == nil && train.Err() != nil && !stopped {
		err = errors.Join(err, context.Cause(train))
	}
	if err != nil {
		j.setTrained()
		ms.Leave(ctx, false, err)
	}
	return r, err
}

// setTrained sets the steps that the trainer reports when it leaves the job.
func (j *Job) setTrained() {
	if j.cfg.member == nil {
		return
	}
	steps := j.step
	if j.cfg.Mode == Sync {
		steps = j.report.Counted().JobStep
	}
	j.cfg.member.SetTrained(steps)
}

// ownTables returns the tables in the cluster that the run trains. All of them must come from the checkpoint from which
// it resumes; the count of pushes need not.
func (j *Job) ownTables() (out []*rowraft.Schema) {
	all := []*rowraft.Schema{&j.dense, &j.audit}
	for i := range j.fields.Tables {
		all = append(all, &j.fields.Tables[i])
	}
	for _, t := range append(all, j.layout.Schemas()...) {
		if t.ID != 0 {
			out = append(out, t)
		}
	}
	return out
}

// join waits for the job's other trainers, if the trainers of this mode wait for each other.
func (j *Job) join(ctx context.Context, ms *member.Membership) error {
	t, ok := j.tables.(member.StepTables)
	if !ok {
		return nil
	}
	step, err := ms.Join(ctx, t)
	if err == nil {
		joinAt(j, step)
	}
	return err
}

// joinAt lets j begin with a step of its job's run.
func joinAt(j *Job, step int64) {
	if m, ok := j.mode.(*mode.SyncStep); ok {
		m.JoinAt(step)
		j.ramp.Reached(j.before.jobStep + step - 1)
	}
}
