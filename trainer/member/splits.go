package member

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/wire"
)

// Source is the registry of the job, which hands out splits.
type Source interface {
	// NextSplit asks for a split. ahead is the number of splits that the trainer holds and has not begun.
	NextSplit(ctx context.Context, take int64, ahead int) (jobs.Split, error)
	EndSplit(ctx context.Context, p jobs.Split) error
}

const (
	// splitsAhead is the number of splits that a trainer takes ahead, so that it can continue while the scheduler
	// is away.
	splitsAhead = 2
	// splitPoll is how long a feed waits for a split before the loop may do something else, and how often it asks
	// for a split that another trainer has.
	splitPoll = 200 * time.Millisecond
	// splitRetry is how often a trainer whose steps the others wait for asks.
	splitRetry = 25 * time.Millisecond
	// splitAheadRetry is how often a trainer asks while it has splits to begin.
	splitAheadRetry = time.Second
)

// Splits reads the splits of the data that the scheduler gives to this trainer, and reports the trained ones.
//
// Goroutines: the loop calls Next; any goroutine calls Reached, and Done and Positions of a Range. One goroutine more,
// from the first Next to Close, makes all calls to the scheduler: it takes splits ahead and ends trained ones. It
// waits without limit for a scheduler that is away, and the loop waits for it only when no split is left. One
// goroutine for all calls keeps the order of take and end, and lets training continue during a call.
type Splits struct {
	set       data.Set
	source    Source
	plan      jobs.SplitPlan
	ctx       context.Context // of the run
	idleSteps bool            // Next returns idle batches

	// The goroutine that reads owns these fields.
	src     data.Source // the source of the split that is read; nil between splits
	last    data.Source // the source of the split before, between splits: a file is read on, once an epoch; or nil
	reading *heldSplit
	batches int64
	epoch   int64 // of the last batch
	running bool  // the goroutine that calls the scheduler is running
	end     context.CancelFunc
	ended   chan struct{}

	wake chan struct{} // capacity 1: that goroutine has something to do

	mu        sync.Mutex
	changed   chan struct{} // closed at the next change of the scheduler's answers
	ahead     []jobs.Split  // taken and not begun
	held      []*heldSplit  // begun, in the order they were taken
	toEnd     []*heldSplit  // those of held that are trained and not yet reported
	starved   bool          // the loop waits for a split
	refusedAt time.Time     // when the scheduler last had no split; zero: its last answer was another one
	allTaken  bool          // because other trainers have all of them
	done      bool          // no split is left
	err       error         // the error that ended a call; there are no more calls
}

// heldSplit is a split that is not fully trained. Offsets count its examples.
type heldSplit struct {
	jobs.Split
	read  int64
	acked int64           // all examples before it are acknowledged
	ahead map[int64]int64 // acknowledged batches behind a gap: begin → end
}

// Range is the place of a batch in a split; without a split, that of a batch without data. It implements
// [mode.Place].
type Range struct {
	splits   *Splits
	split    *heldSplit
	from, to int64
}

// Split returns where the batch is: in which split, and behind how many of its examples. It returns false for a batch
// without data.
func (r Range) Split() (epoch, split, offset int64, ok bool) {
	if r.split == nil {
		return 0, 0, 0, false
	}
	return r.split.Epoch, r.split.Number, r.from, true
}

// Done implements [mode.Place].
func (r Range) Done() error { return r.splits.batchDone(r) }

// Positions implements [mode.Place].
func (r Range) Positions() []rowraft.Position { return r.splits.positions(r) }

// NewSplits returns the splits of set that source hands out to this trainer, by the job's plan. With idleSteps, Next
// returns idle batches while other trainers have the remaining data, because they wait for this trainer's steps.
func NewSplits(set data.Set, source Source, plan jobs.SplitPlan, idleSteps bool) *Splits {
	return &Splits{set: set, source: source, plan: plan, idleSteps: idleSteps}
}

// Open begins a run, which ends with ctx, after so many batches.
func (d *Splits) Open(ctx context.Context, batches int64) { d.ctx, d.batches = ctx, batches }

// Batches returns how many batches the run has read, in this process and those before.
func (d *Splits) Batches() int64 { return d.batches }

// Close ends the calls to the scheduler.
func (d *Splits) Close() {
	for _, src := range []data.Source{d.src, d.last} {
		if src != nil {
			src.Close()
		}
	}
	d.src, d.last = nil, nil
	if d.running {
		d.end()
		<-d.ended
	}
}

// start starts the goroutine that calls the scheduler.
func (d *Splits) start() {
	if d.running {
		return
	}
	d.running, d.wake, d.changed, d.ended = true, make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	var ctx context.Context
	ctx, d.end = context.WithCancel(d.ctx)
	go func() {
		defer close(d.ended)
		d.callScheduler(ctx)
	}()
}

// Read is a batch that was read.
type Read struct {
	Range Range
	Batch int64 // its number, from 1
	Epoch int64
	Idle  bool // no data: this trainer only takes part in the step
}

// Next fills b with the next batch. It returns io.EOF if no split is left, and data.ErrNoneYet if other trainers have
// the remaining ones, and may give them up. One goroutine may call it.
func (d *Splits) Next(b *data.Batch) (Read, error) {
	d.start()
	for {
		for d.src == nil {
			idle, err := d.begin()
			if err != nil {
				return Read{}, err
			}
			if idle {
				d.batches++
				return Read{Range: Range{splits: d}, Batch: d.batches, Epoch: d.epoch, Idle: true}, nil
			}
		}
		err := d.src.Next(b)
		if err == io.EOF {
			d.src, d.last = nil, d.src
			continue
		} else if err != nil {
			return Read{}, err
		}
		d.mu.Lock()
		p := d.reading
		r := Range{d, p, p.read, p.read + int64(b.Read)}
		p.read = r.to
		d.mu.Unlock()
		if b.N == 0 { // only bad lines were left
			if err := r.Done(); err != nil {
				return Read{}, err
			}
			continue
		}
		d.batches++
		d.epoch = p.Epoch
		return Read{Range: r, Batch: d.batches, Epoch: p.Epoch}, nil
	}
}

// begin opens the next split. It returns data.ErrNoneYet if there is none yet, io.EOF if none is left, and idle if the
// trainer must take part in a step without data.
func (d *Splits) begin() (idle bool, err error) {
	poll := time.NewTimer(splitPoll)
	defer poll.Stop()
	asked := time.Now()
	for {
		d.mu.Lock()
		if len(d.ahead) > 0 {
			err := d.openLocked()
			d.mu.Unlock()
			// A split was used up, so the goroutine can take the next one ahead.
			d.wakeCaller()
			return false, err
		}
		done, err, held, changed := d.done, d.err, d.allTaken && d.refusedAt.After(asked.Add(-splitRetry)), d.changed
		d.starved = true
		d.mu.Unlock()
		switch {
		case d.ctx.Err() != nil:
			return false, data.ErrNoneYet // ctx ended: the loop ends
		case err != nil:
			return false, err
		case done:
			return false, io.EOF
		case d.idleSteps && held:
			return true, nil
		}
		d.wakeCaller()
		select {
		case <-changed:
		case <-poll.C:
			return false, data.ErrNoneYet
		case <-d.ctx.Done():
		}
	}
}

// openLocked begins to read the split that was taken first.
// REQUIRES: d.mu is held, and a split was taken.
func (d *Splits) openLocked() (err error) {
	p := d.ahead[0]
	d.ahead, d.starved = d.ahead[1:], false
	h := &heldSplit{Split: p, read: p.Offset, acked: p.Offset, ahead: make(map[int64]int64)}
	d.held = append(d.held, h)
	if p.From+p.Offset >= p.To { // its last reader ended before it could report the end
		d.toEnd = append(d.toEnd, h)
		return nil
	}
	d.reading = h
	last := d.last
	d.last = nil
	if c, ok := last.(data.Continuer); ok && c.Continue(p.Epoch, p.From+p.Offset, p.To) {
		d.src = last
		return nil
	}
	if last != nil {
		last.Close()
	}
	d.src, err = d.set.(data.Ranger).Range(p.Epoch, p.From+p.Offset, p.To)
	return err
}

// wakeCaller makes the goroutine that calls the scheduler look for work.
func (d *Splits) wakeCaller() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// callScheduler makes the calls to the scheduler, one at a time, until one is refused finally or ctx ends.
func (d *Splits) callScheduler(ctx context.Context) {
	for taken := int64(0); ctx.Err() == nil; {
		d.mu.Lock()
		var end *heldSplit
		// Ends come before the next take: at the end of the data the other trainers wait for them.
		if len(d.toEnd) > 0 {
			end = d.toEnd[0]
		}
		ahead := len(d.ahead)
		wait := d.nextCallLocked(time.Now())
		d.mu.Unlock()
		var err error
		switch {
		case end != nil:
			err = d.source.EndSplit(ctx, end.Split)
		case wait > 0:
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-d.wake:
			case <-ctx.Done():
			}
			timer.Stop()
			continue
		}
		var p jobs.Split
		if end == nil {
			p, err = d.source.NextSplit(ctx, taken+1, ahead)
		}
		// The run ends. The error is only that of the cancelled call, and must not become the error of the run.
		if ctx.Err() != nil && err != nil {
			return
		}
		d.mu.Lock()
		switch {
		case end != nil && err == nil:
			d.toEnd = d.toEnd[1:]
			d.held = slices.DeleteFunc(d.held, func(q *heldSplit) bool { return q == end })
		case end != nil:
			d.err = fmt.Errorf("end split %d of epoch %d of the data: %w", end.Number, end.Epoch, err)
		case err == nil:
			taken++
			d.ahead, d.refusedAt, d.allTaken = append(d.ahead, p), time.Time{}, false
		case errors.Is(err, jobs.ErrNoSplits):
			d.done = true
		case errors.Is(err, jobs.ErrSplitsHeld):
			d.refusedAt, d.allTaken = time.Now(), ahead == 0
		default:
			d.err = err
		}
		over := d.err != nil
		close(d.changed)
		d.changed = make(chan struct{})
		d.mu.Unlock()
		if over {
			return
		}
	}
}

// nextCallLocked returns how long to wait before asking for the next split.
// REQUIRES: d.mu is held.
func (d *Splits) nextCallLocked(now time.Time) time.Duration {
	const never = time.Hour
	every := splitAheadRetry
	switch {
	case d.done || len(d.ahead) >= splitsAhead:
		return never
	case d.refusedAt.IsZero():
		return 0
	case d.starved && d.idleSteps:
		every = splitRetry
	case d.starved:
		every = splitPoll
	}
	return every - now.Sub(d.refusedAt)
}

// batchDone records that a batch is trained and acknowledged, or was skipped. The calling goroutine reports a fully
// trained split later. Safe for concurrent use.
func (d *Splits) batchDone(at Range) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at.split == nil {
		return d.err
	}
	p := at.split
	// Batches are acknowledged in any order when several pushes are under way. Only a range without a gap may be reported:
	// another trainer would continue behind it.
	p.ahead[at.from] = at.to
	for to, ok := p.ahead[p.acked]; ok; to, ok = p.ahead[p.acked] {
		delete(p.ahead, p.acked)
		p.acked = to
	}
	if p.acked == p.To-p.From {
		d.toEnd = append(d.toEnd, p)
		d.wakeCaller()
	}
	return d.err
}

// Flush returns when the scheduler knows all trained splits, or ctx ends. It waits without limit for a scheduler
// that is away.
func (d *Splits) Flush(ctx context.Context) error {
	if d == nil || !d.running {
		return nil
	}
	for {
		d.mu.Lock()
		left, err, changed := len(d.toEnd), d.err, d.changed
		d.mu.Unlock()
		if left == 0 || err != nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// Reached returns how far this trainer is in the splits that it holds, those included that it has not begun.
func (d *Splits) Reached() (out []jobs.SplitReached) {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.held {
		out = append(out, jobs.SplitReached{Epoch: p.Epoch, Number: p.Number, Acknowledged: p.acked, Read: p.read})
	}
	for _, p := range d.ahead {
		out = append(out, jobs.SplitReached{Epoch: p.Epoch, Number: p.Number, Acknowledged: p.Offset, Read: p.Offset})
	}
	return out
}

// positions returns what the push of a batch stores about this trainer's splits: how far each is acknowledged, and
// where the batch ends in its own. If the trainer dies, another one continues from there.
func (d *Splits) positions(at Range) (out []rowraft.Position) {
	if d == nil || !d.plan.InLog {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.held {
		both := p.Reached(&d.plan, p.acked, at.to)
		if p != at.split {
			out = append(out, both[0])
			continue
		}
		out = append(out, both[:]...)
	}
	slices.SortFunc(out, func(a, b rowraft.Position) int { return cmp.Compare(a.ID, b.ID) })
	// The entry has room for so many. What is cut off is reported by a later push or by the beats.
	return out[:min(len(out), wire.MaxPushPositions)]
}
