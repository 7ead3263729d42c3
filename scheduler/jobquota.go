package scheduler

import (
	"context"
	"time"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// forgetIdleJobs deletes the expired runs from the registry.
func (s *Scheduler) forgetIdleJobs(ctx context.Context) {
	now := uint64(time.Now().UnixNano())
	for _, r := range s.machine.Runs() {
		if !meta.IsExpired(r, now) {
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
