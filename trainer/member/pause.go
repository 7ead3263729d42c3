package member

import (
	"context"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer/state"
)

// PausePoint is where the loop stops between two batches when a checkpoint asks for its state. It serves one
// request at a time.
type PausePoint struct {
	busy *semaphore.Weighted // of 1: taken from a request until its release

	mu      sync.Mutex
	request *Pause
	ended   bool // the loop has ended; state and err are final
	state   *state.State
	err     error
	pace    pace
	// interrupt ends a wait of the loop for other workers; nil: the loop does not wait.
	interrupt context.CancelFunc
}

// Pause is one request for the state.
type Pause struct {
	reached chan struct{} // closed when state or err is set
	release chan struct{} // closed by the requester
	State   *state.State  // at the boundary; it is never changed
	err     error

	// For a request to all trainers of the job, which stop at one boundary. PausePoint.mu guards these fields.
	joint     bool
	boundary  int64         // the loop goes to this boundary, and not beyond
	agreed    bool          // all trainers know the boundary: the loop stops there
	decided   chan struct{} // closed when the boundary is agreed, or the request is answered or withdrawn
	stoppedAt int64         // the boundary at which the loop stopped
}

// Boundary returns the boundary at which all trainers of the job stopped; 0 if they do not wait for each other.
func (p *Pause) Boundary() int64 {
	if !p.joint {
		return 0
	}
	return p.stoppedAt
}

// NewPausePoint returns the pause point of a loop that has not begun.
func NewPausePoint() *PausePoint { return &PausePoint{busy: semaphore.NewWeighted(1)} }

// Request asks the loop for its state, and returns when the loop has stopped at a batch boundary. The loop continues
// when release is called or its own context ends. A second call waits for the release of the first. If agree is not
// nil and the job's trainers wait for each other, the loop stops at the boundary that agree returns.
//
// The error is that of the run, if it failed, that of agree, or that of ctx.
func (g *PausePoint) Request(ctx context.Context, agree jobs.Agree) (p *Pause, release func(), err error) {
	if err := g.busy.Acquire(ctx, 1); err != nil {
		return nil, nil, err
	}
	p = g.add(agree != nil)
	var once sync.Once
	release = func() {
		once.Do(func() {
			close(p.release)
			g.busy.Release(1)
		})
	}
	// withdraw decides the race with the loop: if the loop has answered already, the answer counts and the caller must
	// release it.
	if err := g.agree(ctx, p, agree); err != nil && g.withdraw(p) {
		release()
		return nil, nil, err
	}
	select {
	case <-p.reached:
	case <-ctx.Done():
		if g.withdraw(p) {
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

// Serve returns the function Pause of a trainer's registration. reached returns how far the trainer is in its splits of
// the data; nil: it has a fixed share.
func (g *PausePoint) Serve(reached func() []jobs.SplitReached) func(context.Context, jobs.Agree) (*jobs.Paused, error) {
	return func(ctx context.Context, agree jobs.Agree) (*jobs.Paused, error) {
		p, release, err := g.Request(ctx, agree)
		if err != nil {
			return nil, err
		}
		s := p.State
		out := &jobs.Paused{Step: s.Step, Size: s.Size(), Boundary: p.Boundary(), Release: release,
			Write: func(w io.Writer) error {
				_, err := s.WriteTo(w)
				return err
			}}
		if reached != nil {
			out.Splits = reached()
		}
		for i := range out.Splits { // what was read ahead is not trained
			out.Splits[i].Read = out.Splits[i].Acknowledged
		}
		return out, nil
	}
}

func (g *PausePoint) add(together bool) *Pause {
	p := &Pause{reached: make(chan struct{}), release: make(chan struct{}), decided: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		p.State, p.err = g.state, g.err
		close(p.reached)
		return p
	}
	// Under one lock with begin: no batch can begin between the reading of the boundary and the moment when the loop sees
	// the request.
	p.joint, p.boundary = together && g.pace.per > 0, g.pace.begun()
	g.request = p
	if g.interrupt != nil {
		g.interrupt()
		g.interrupt = nil
	}
	return p
}

// UntilRequested implements [mode.Pauses].
func (g *PausePoint) UntilRequested(ctx context.Context, atMost time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.interrupt = cancel; g.request != nil {
		cancel()
	}
	return ctx, cancel
}

// agree moves p to the boundary that all trainers have agreed on.
func (g *PausePoint) agree(ctx context.Context, p *Pause, agree jobs.Agree) error {
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
func (g *PausePoint) withdraw(p *Pause) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.resolveLocked(p)
}

// resolveLocked ends the wait for p; it returns false if the wait was over.
// REQUIRES: g.mu is held.
func (g *PausePoint) resolveLocked(p *Pause) bool {
	if p == nil || g.request != p {
		return false
	}
	g.request = nil
	// agree has closed the channel otherwise.
	if !p.agreed {
		close(p.decided)
	}
	p.stoppedAt = g.pace.begun()
	return true
}

// Requested implements [mode.Pauses].
func (g *PausePoint) Requested() bool { return g.Current() != nil }

// Current returns the request that waits for the loop, or nil.
func (g *PausePoint) Current() *Pause {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.request
}

// Hold answers p with s or err, then waits until the requester releases it, or ctx ends.
func (g *PausePoint) Hold(ctx context.Context, p *Pause, s *state.State, err error) {
	g.mu.Lock()
	mine := g.resolveLocked(p) // false: the request was withdrawn
	if mine {
		p.State, p.err = s, err
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

// End answers every request from now on with the final state.
func (g *PausePoint) End(s *state.State, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended, g.state, g.err = true, s, err
	if p := g.request; g.resolveLocked(p) {
		p.State, p.err = s, err
		close(p.reached)
	}
}

// refuse answers a request with err; the loop continues.
func (g *PausePoint) refuse(p *Pause, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.resolveLocked(p) {
		p.err = err
		close(p.reached)
	}
}
