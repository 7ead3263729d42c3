package trainer

import (
	"context"
	"errors"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/member"
	"github.com/rowraft/rowraft/trainer/state"
)

// Pause stops the run at its next batch boundary: every batch that was read is trained, and every push
// acknowledged. The loop reads and pushes nothing until release is called or the run's own context ends. Pause
// returns the state at the boundary, which is never changed afterwards; if the run is over it returns the final
// state.
//
// Safe for concurrent use; a second call waits for the release of the first. The error is that of the run, if it
// failed, or that of ctx.
func (j *Job) Pause(ctx context.Context) (s *state.State, release func(), err error) {
	p, release, err := j.pausePoint.Request(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	return p.State, release, nil
}

// boundary answers p. The loop calls it between two batches, when no push is under way. An error ends the run.
func (j *Job) boundary(ctx, pushes context.Context, p *member.Pause) error {
	err := j.report.Failed()
	if err == nil {
		err = j.mode.Drain(pushes)
	}
	if err != nil {
		j.pausePoint.Hold(ctx, p, nil, err)
		return err
	}
	j.pausePoint.Hold(ctx, p, j.state(false), nil)
	return nil
}

// endPausePoint records the end of the loop, with its error.
func (j *Job) endPausePoint(err error, ended bool) {
	if err = errors.Join(err, j.report.Failed()); err != nil {
		j.pausePoint.End(nil, rowraft.Errorf(rowraft.CodeOf(err), "the trainer has failed: %w", err))
		return
	}
	j.pausePoint.End(j.state(ended), nil)
}
