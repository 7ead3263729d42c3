package trainer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/trainer/state"
	"golang.org/x/sync/semaphore"
)

// pausePoint is where the loop stops between two batches when a checkpoint asks for its state. It serves one
// request at a time.
type pausePoint struct {
	busy *semaphore.Weighted // of 1: taken from a request until its release

	mu      sync.Mutex
	request *pause
	ended   bool // the loop has ended; state and err are final
	state   *state.State
	err     error
	pace    pace
	// interrupt ends a wait of the loop for other workers; nil: the loop does not wait.
	interrupt context.CancelFunc
}

// pause is one request for the state.
type pause struct {
	reached chan struct{} // closed when state or err is set
	release chan struct{} // closed by the requester
	state   *state.State
	err     error

	// For a request to all trainers of the job, which stop at one boundary. pausePoint.mu guards these fields.
	joint     bool
	boundary  int64         // the loop goes to this boundary, and not beyond
	agreed    bool          // all trainers know the boundary: the loop stops there
	decided   chan struct{} // closed when the boundary is agreed, or the request is answered or withdrawn
	stoppedAt int64         // the boundary at which the loop stopped
}

// Pause stops the run at its next batch boundary: every batch that was read is trained, and every push
// acknowledged. The loop reads and pushes nothing until release is called or the run's own context ends. Pause
// returns the state at the boundary, which is never changed afterwards; if the run is over it returns the final
// state.
//
// Safe for concurrent use; a second call waits for the release of the first. The error is that of the run, if it
// failed, or that of ctx.
func (j *Job) Pause(ctx context.Context) (s *state.State, release func(), err error) {
	p, release, err := j.pause(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	return p.state, release, nil
}

// pause is Pause. If agree is not nil and the job's trainers wait for each other, it stops at the boundary that
// agree returns.
func (j *Job) pause(ctx context.Context, agree client.Agree) (p *pause, release func(), err error) {
	if err := j.pausePoint.busy.Acquire(ctx, 1); err != nil {
		return nil, nil, err
	}
	p = j.pausePoint.add(agree != nil)
	var once sync.Once
	release = func() {
		once.Do(func() {
			close(p.release)
			j.pausePoint.busy.Release(1)
		})
	}
	if err := j.pausePoint.agree(ctx, p, agree); err != nil && j.pausePoint.withdraw(p) {
		release()
		return nil, nil, err
	}
	select {
	case <-p.reached:
	case <-ctx.Done():
		if j.pausePoint.withdraw(p) {
			release()
			return nil, nil, ctx.Err()
		}
	}
	if p.err != nil {
		release()
		return nil, nil, p.err
	}
	return p, release, nil
}

func (g *pausePoint) add(together bool) *pause {
	p := &pause{reached: make(chan struct{}), release: make(chan struct{}), decided: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		p.state, p.err = g.state, g.err
		close(p.reached)
		return p
	}
	p.joint, p.boundary = together && g.pace.per > 0, g.pace.begun()
	g.request = p
	if g.interrupt != nil {
		g.interrupt()
		g.interrupt = nil
	}
	return p
}

// UntilRequested implements [mode.Pauses].
func (g *pausePoint) UntilRequested(ctx context.Context, atMost time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.interrupt = cancel; g.request != nil {
		cancel()
	}
	return ctx, cancel
}

// agree moves p to the boundary that all trainers have agreed on.
func (g *pausePoint) agree(ctx context.Context, p *pause, agree client.Agree) error {
	if !p.joint {
		return nil
	}
	target, err := agree(ctx, p.boundary)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.request == p {
		p.boundary, p.agreed = max(p.boundary, target), true
		close(p.decided)
	}
	return nil
}

// withdraw cancels a request; it returns false if the loop has answered it.
func (g *pausePoint) withdraw(p *pause) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.resolveLocked(p)
}

// resolveLocked ends the wait for p; it returns false if the wait was over.
// REQUIRES: g.mu is held.
func (g *pausePoint) resolveLocked(p *pause) bool {
	if p == nil || g.request != p {
		return false
	}
	g.request = nil
	if !p.agreed {
		close(p.decided)
	}
	p.stoppedAt = g.pace.begun()
	return true
}

// Requested implements [mode.Pauses].
func (g *pausePoint) Requested() bool { return g.current() != nil }

// current returns the request that waits for the loop, or nil.
func (g *pausePoint) current() *pause {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.request
}

// hold answers p with s or err, then waits until the requester releases it, or ctx ends.
func (g *pausePoint) hold(ctx context.Context, p *pause, s *state.State, err error) {
	g.mu.Lock()
	mine := g.resolveLocked(p) // false: the request was withdrawn
	if mine {
		p.state, p.err = s, err
		close(p.reached)
	}
	g.mu.Unlock()
	if !mine || err != nil {
		return
	}
	select {
	case <-p.release:
	case <-ctx.Done():
	}
}

// end answers every request from now on with the final state.
func (g *pausePoint) end(s *state.State, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended, g.state, g.err = true, s, err
	if p := g.request; g.resolveLocked(p) {
		p.state, p.err = s, err
		close(p.reached)
	}
}

// refuse answers a request with err; the loop continues.
func (g *pausePoint) refuse(p *pause, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.resolveLocked(p) {
		p.err = err
		close(p.reached)
	}
}

// boundary answers p. The loop calls it between two batches, when no push is under way. An error ends the run.
func (j *Job) boundary(ctx, pushes context.Context, p *pause) error {
	err := j.report.Failed()
	if err == nil {
		err = j.mode.Drain(pushes)
	}
	if err != nil {
		j.pausePoint.hold(ctx, p, nil, err)
		return err
	}
	j.pausePoint.hold(ctx, p, j.state(false), nil)
	return nil
}

// endPausePoint records the end of the loop, with its error.
func (j *Job) endPausePoint(err error, ended bool) {
	if err = errors.Join(err, j.report.Failed()); err != nil {
		j.pausePoint.end(nil, rowraft.Errorf(rowraft.CodeOf(err), "the trainer has failed: %w", err))
		return
	}
	j.pausePoint.end(j.state(ended), nil)
}
