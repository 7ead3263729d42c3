package mode

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/tables"
)

// Batch is a batch as a mode sees it. The goroutine that holds it owns it.
type Batch struct {
	Step int64            // from 1
	Segs []tables.Segment // the rows to pull; then the gradients to push
	// Place is the place in the data that the scheduler hands out; nil if the trainer reads a fixed share.
	Place Place
	Stale int64 // set by Pull: upper bound of the steps that the weights lag
	Idle  bool  // no data: other trainers have the rest, and this trainer only takes part in the step
	Empty bool  // no gradients
}

// Rows returns the number of rows in b.Segs.
func (b *Batch) Rows() int { return tables.CountRows(b.Segs) }

// Place is the place of a batch in the data that the scheduler hands out to the trainers. Safe for concurrent use.
type Place interface {
	// Done records that the tables have the batch, or never will.
	Done() error
	// Positions returns what the push of the batch stores about this trainer's data: if the trainer dies, another
	// one continues from there.
	Positions() []rowraft.Position
}

// Run is the run that a mode works for. Safe for concurrent use.
type Run interface {
	// PushBegan counts batches whose push begins.
	PushBegan(batches int64) (sent time.Time)
	// PushEnded counts the result of these batches: acknowledged, or unknown after an error, which ends the run. It
	// returns the error.
	PushEnded(sent time.Time, batches int64, err error) error
	// Late counts a batch that the job continued without.
	Late(b *Batch, why string)
	// JobReached records the last closed step of the job.
	JobReached(step int64)
	// Fail ends the run with err and returns err.
	Fail(err error) error
	// Failed returns the error that ends the run, or nil.
	Failed() error
	// Unfinished returns how many of the first batches of this process have not ended.
	Unfinished(first int64) int64
}

// Pauses is where the run stops when a checkpoint wants its state. Safe for concurrent use.
type Pauses interface {
	// Requested reports whether a checkpoint wants the state.
	Requested() bool
	// UntilRequested returns a context that ends with ctx, after atMost, or when a checkpoint wants the state. Only
	// one goroutine may call it.
	UntilRequested(ctx context.Context, atMost time.Duration) (context.Context, context.CancelFunc)
	// Advance raises the finished batches, counted as all trainers of the job count them, to done.
	Advance(done int64)
	// Finish does that, and counts a batch of this trainer as finished.
	Finish(done int64)
	// AgreedBefore waits until the trainers agree on no boundary. If one is agreed that lies before step, it returns
	// the boundary, and a function that tells the requester that this trainer cannot stop there; otherwise nil.
	AgreedBefore(ctx context.Context, step int64) (boundary int64, refuse func(error))
}

// ErrBoundary means that a pull waits for other trainers, and a checkpoint wants the state.
var ErrBoundary = errors.New("the loop may stop here")

// Options are what every mode needs.
type Options struct {
	Tables   tables.Tables
	Run      Run
	Patience time.Duration // how long one push, or a round, may take; not a push of mode sync
}

// Async is mode async: every batch is a push of its own, and no trainer waits for another.
type Async struct {
	Options
	done int64 // batches of the processes before this one
	// jobDone are the steps of the job that were closed before the checkpoint from which this run resumes.
	jobDone int64
}

// NewAsync returns mode async.
func NewAsync(o Options) *Async { return &Async{Options: o} }

// Begin sets how many batches of this trainer, and steps of the job, were done before this run. The loop calls it
// before any other method.
func (m *Async) Begin(done, jobDone int64) { m.done, m.jobDone = done, jobDone }

// Pull fills the values of b.Segs with the weights for the model, and sets b.Stale. It may return ErrBoundary: the loop
// may take its state now, and then calls Pull again.
func (m *Async) Pull(ctx context.Context, b *Batch) error {
	b.Stale = m.Run.Unfinished(b.Step - 1 - m.done)
	if b.Idle {
		return nil
	}
	return m.Tables.Pull(ctx, b.Segs)
}

// Refresh is called right before the model computes b, by a loop that has pulled ahead.
func (m *Async) Refresh(*Batch) {}

// Push takes over the gradients in b.Segs, and returns when the loop may reuse b.
func (m *Async) Push(ctx context.Context, b *Batch) error {
	ctx, cancel := context.WithTimeout(ctx, m.Patience)
	defer cancel()
	sent := m.Run.PushBegan(1)
	return m.pushed(b, sent, m.Tables.Push(ctx, b.Segs))
}

// pushed counts the result of the push of b.
func (m *Async) pushed(b *Batch, sent time.Time, err error) error {
	if err != nil {
		err = fmt.Errorf("step %d: push %d rows: %w", b.Step, b.Rows(), err)
	}
	if err := m.Run.PushEnded(sent, 1, err); err != nil {
		return err
	}
	return m.placeDone(b.Place)
}

func (m *Async) placeDone(p Place) error {
	if p == nil {
		return nil
	}
	if err := p.Done(); err != nil {
		return m.Run.Fail(err)
	}
	return nil
}

// positions returns what the push of b stores about this trainer's data.
func (b *Batch) positions() []rowraft.Position {
	if b.Place == nil {
		return nil
	}
	return b.Place.Positions()
}

// Idle is called from time to time while this trainer has nothing to read. Pushes may be under way.
func (m *Async) Idle(context.Context) error { return nil }

// Drain returns when the tables have all pushed gradients. No push is under way.
func (m *Async) Drain(context.Context) error { return nil }

// Finish is called after Drain, when this trainer has no batches left. It calls begin before each step that it takes
// without a batch, and returns if begin returns false.
func (m *Async) Finish(context.Context, func() (bool, error)) error { return nil }

// Done reports that the job needs no more batches of this trainer, even if it has some.
func (m *Async) Done() bool { return false }

// PushesEmpty reports whether the loop must also push a batch without gradients, because other trainers count it.
func (m *Async) PushesEmpty() bool { return false }

// Wait returns when all goroutines of the mode have ended.
func (m *Async) Wait() {}
