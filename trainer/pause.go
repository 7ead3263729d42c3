package trainer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/trainer/state"
)

// gate is where the loop stops between two batches when somebody asks for its
// state. One asks at a time.
type gate struct {
	turn chan struct{} // capacity 1: full from a request until its release

	mu    sync.Mutex
	asked *pause
	ended bool // the loop has; state and err stay
	state *state.State
	err   error
	pace  pace
	// interrupt ends what the loop does while it waits for others; nil: nothing.
	interrupt context.CancelFunc
}

// pause is one request.
type pause struct {
	reached chan struct{} // closed when state or err is set
	release chan struct{} // closed by who asked
	state   *state.State
	err     error

	// Of one whose trainers must stand at one boundary; under gate.mu.
	together bool
	limit    int64         // the boundary that the loop goes to, and not beyond
	agreed   bool          // all know it: who is there stands
	settled  chan struct{} // closed when it is agreed, or the request is answered or withdrawn
	at       int64         // the boundary at which it stands
}

// Pause stops the run at its next batch boundary: every batch that was read is
// trained, every push acknowledged, and nothing is read or pushed until release is
// called, or the run's own context ends. It returns the state there, which nobody
// changes afterwards; that of the end if the run is over.
//
// Safe for concurrent use; a second call waits for the release of the first. The
// error is that of the run, if it failed, or that of ctx.
func (j *Job) Pause(ctx context.Context) (s *state.State, release func(), err error) {
	p, release, err := j.pause(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	return p.state, release, nil
}

// pause is Pause at a boundary that the job's trainers agree on, if they wait for each
// other and agree is not nil.
func (j *Job) pause(ctx context.Context, agree client.Agree) (p *pause, release func(), err error) {
	select {
	case j.gate.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	p = j.gate.ask(agree != nil)
	var once sync.Once
	release = func() {
		once.Do(func() {
			close(p.release)
			<-j.gate.turn
		})
	}
	if err := j.gate.agree(ctx, p, agree); err != nil && j.gate.withdraw(p) {
		release()
		return nil, nil, err
	}
	select {
	case <-p.reached:
	case <-ctx.Done():
		if j.gate.withdraw(p) {
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

func (g *gate) ask(together bool) *pause {
	p := &pause{reached: make(chan struct{}), release: make(chan struct{}), settled: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		p.state, p.err = g.state, g.err
		close(p.reached)
		return p
	}
	p.together, p.limit = together && g.pace.per > 0, g.pace.begun()
	g.asked = p
	if g.interrupt != nil {
		g.interrupt()
		g.interrupt = nil
	}
	return p
}

// untilAsked returns a context that ends with ctx, after a while, or when somebody asks.
// Only the loop may call it.
func (g *gate) untilAsked(ctx context.Context, atMost time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.interrupt = cancel; g.asked != nil {
		cancel()
	}
	return ctx, cancel
}

// agree brings p to the boundary that all have agreed on.
func (g *gate) agree(ctx context.Context, p *pause, agree client.Agree) error {
	if !p.together {
		return nil
	}
	target, err := agree(ctx, p.limit)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asked == p {
		p.limit, p.agreed = max(p.limit, target), true
		close(p.settled)
	}
	return nil
}

// withdraw takes a request back; it reports false if it has been answered.
func (g *gate) withdraw(p *pause) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.answerLocked(p)
}

// answerLocked ends the wait for p; it reports false if that was over.
// REQUIRES: g.mu is held.
func (g *gate) answerLocked(p *pause) bool {
	if p == nil || g.asked != p {
		return false
	}
	g.asked = nil
	if !p.agreed {
		close(p.settled)
	}
	p.at = g.pace.begun()
	return true
}

// wanted returns the request that waits for the loop, nil if there is none.
func (g *gate) wanted() *pause {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked
}

// stand answers p with s or err and waits until it is released, or ctx ends.
func (g *gate) stand(ctx context.Context, p *pause, s *state.State, err error) {
	g.mu.Lock()
	mine := g.answerLocked(p) // else it was withdrawn
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

// end answers everybody from now on with the state of the end.
func (g *gate) end(s *state.State, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended, g.state, g.err = true, s, err
	if p := g.asked; g.answerLocked(p) {
		p.state, p.err = s, err
		close(p.reached)
	}
}

// refuse answers a request with err; the loop goes on.
func (g *gate) refuse(p *pause, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.answerLocked(p) {
		p.err = err
		close(p.reached)
	}
}

// boundary is called by the loop between two batches, when no push is under way. An
// error ends the run.
func (j *Job) boundary(ctx, pushes context.Context, p *pause) error {
	err := j.failed()
	if err == nil {
		err = j.way.settle(pushes)
	}
	if err != nil {
		j.gate.stand(ctx, p, nil, err)
		return err
	}
	j.gate.stand(ctx, p, j.state(false), nil)
	return nil
}

// endGate is called when the loop is over, with its error.
func (j *Job) endGate(err error, ended bool) {
	if err = errors.Join(err, j.failed()); err != nil {
		j.gate.end(nil, rowraft.Errorf(rowraft.CodeOf(err), "the trainer has failed: %w", err))
		return
	}
	j.gate.end(j.state(ended), nil)
}
