//go:build cgo

package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/member"
	"github.com/rowraft/rowraft/trainer/mode"
	"github.com/rowraft/rowraft/trainer/tables"
)

var unknown = math.NaN()

// failed returns the error that has ended the job.
func (j *job) failed() error {
	if err := j.run.Failed(); err != nil {
		return err
	}
	if j.life.Err() != nil {
		return context.Cause(j.life)
	}
	return nil
}

// bound returns ctx, which ends with the job, too.
func (j *job) bound(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(j.life, cancel)
	return ctx, func() { stop(); cancel() }
}

// ended returns the error of a call that has ended with err: that of the job, if the job has ended it.
func (j *job) ended(err error) error {
	if err != nil && j.life.Err() != nil {
		return context.Cause(j.life)
	}
	return err
}

// boundaryRetry is how long a pull waits that finds a checkpoint: another call serves it.
const boundaryRetry = 20 * time.Millisecond

// pull fills segs with the weights for the next step. stale bounds the steps by which they lag other workers in mode
// ssp.
func (j *job) pull(ctx context.Context, segs []tables.Segment) (stale int64, err error) {
	if err := j.failed(); err != nil {
		return 0, err
	}
	ctx, done := j.bound(ctx)
	defer done()
	b := &mode.Batch{Step: j.step.Load() + 1, Segs: segs}
	for {
		err := j.mode.Pull(ctx, b)
		if !errors.Is(err, mode.ErrBoundary) {
			return b.Stale, j.ended(err)
		}
		select {
		case <-time.After(boundaryRetry):
		case <-ctx.Done():
			return 0, j.ended(ctx.Err())
		}
	}
}

// push pushes the gradients of a step, counted from 0, as the mode does. A push that has begun outlives ctx.
func (j *job) push(step int64, segs []tables.Segment) error {
	if err := j.failed(); err != nil {
		return err
	}
	if j.held != nil { // a hold that was interrupted
		select {
		case <-j.held:
		case <-j.life.Done():
			return context.Cause(j.life)
		}
	}
	b := &mode.Batch{Step: step + 1, Segs: segs, Empty: len(segs) == 0}
	if b.Empty && !j.mode.PushesEmpty() {
		return nil
	}
	if err := j.mode.Push(j.life, b); err != nil {
		return j.ended(err)
	}
	return j.run.Failed()
}

// errPause means that a checkpoint wants the state.
var errPause = errors.New("pause")

// nextJSON is what the caller does before the next step.
type nextJSON struct {
	Pause bool `json:"pause"` // give its state (hold), after every push has ended, and ask again
	Stop  bool `json:"stop"`  // an operator stops the job
}

// nextStep returns when the worker may begin the step that follows step, or when a checkpoint wants its state.
func nextStep(ctx context.Context, s *session, q struct {
	Step int64 `json:"step"` // that was pushed last; -1: none
}) (any, error) {
	j, err := s.worker()
	if err != nil {
		return nil, err
	}
	ctx, done := j.bound(ctx)
	defer done()
	if q.Step >= j.step.Load() { // else it asks again
		j.pushed(q.Step)
	}
	return j.next(ctx, q.Step)
}

func (j *job) next(ctx context.Context, step int64) (v nextJSON, err error) {
	for {
		if err := j.failed(); err != nil {
			return v, err
		}
		v.Stop = j.stopping.Load()
		ok, err := j.pauses.Begin(ctx, func(p *member.Pause) error {
			j.wanted = p
			return errPause
		})
		switch {
		case errors.Is(err, errPause):
			v.Pause = true
			return v, nil
		case err != nil || !ok:
			return v, j.ended(errors.Join(err, ctx.Err()))
		}
		if _, ok := j.mode.(*mode.SSP); !ok {
			return v, nil
		}
		err = j.mode.Pull(ctx, &mode.Batch{Step: step + 2, Idle: true}) // it only waits for the slowest worker
		if !errors.Is(err, mode.ErrBoundary) {
			return v, j.ended(err)
		}
		j.pauses.Undo()
	}
}

// pushed counts a step whose push has begun.
func (j *job) pushed(step int64) {
	j.step.Store(step + 1)
	if j.conf.Together && j.conf.Mode != "sync" {
		j.pauses.Finish(step + 1)
	}
}

// hold gives the state for the pause that next has reported, and returns when the checkpoint lets the worker continue.
// If ctx ends before, the next push waits for that.
// REQUIRES: every push has ended.
func (j *job) hold(ctx context.Context, opaque []byte) error {
	p := j.wanted
	if p == nil {
		return rowraft.Errorf(rowraft.CodePrecondition, "no checkpoint wants the state")
	}
	j.wanted = nil
	err := j.failed()
	if err == nil {
		err = j.mode.Drain(j.life)
	}
	if err != nil {
		j.pauses.Hold(ctx, p, nil, err)
		return j.ended(err)
	}
	held, s := make(chan struct{}), j.state(opaque, false)
	j.held = held
	go func() {
		defer close(held)
		j.pauses.Hold(j.life, p, s, nil)
	}()
	select {
	case <-held:
		return j.ended(j.life.Err())
	case <-ctx.Done():
		return j.ended(ctx.Err())
	}
}

// finish gives the last state: checkpoints get it from now on. REQUIRES: every push has ended.
func (j *job) finish(opaque []byte) error {
	if err := j.failed(); err != nil {
		return err
	}
	if err := j.mode.Drain(j.life); err != nil {
		return j.ended(err)
	}
	if err := j.mode.Finish(j.life, func() (bool, error) { return false, nil }); err != nil {
		return j.ended(err)
	}
	j.pauses.Undo() // the step that will not come
	j.pauses.End(j.state(opaque, !j.stopping.Load()), nil)
	return nil
}

// ascending refuses keys that are not, because the modes need them so.
func ascending(segs []tables.Segment) error {
	for i := range segs {
		keys := segs[i].Keys
		for k := 1; k < len(keys); k++ {
			if keys[k] <= keys[k-1] {
				return rowraft.Errorf(rowraft.CodeInvalidArgument, "key %d follows %d: want strictly ascending keys", keys[k],
					keys[k-1])
			}
		}
	}
	return nil
}
