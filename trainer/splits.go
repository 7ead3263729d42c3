package trainer

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
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/mode"
	"github.com/rowraft/rowraft/wire"
)

// feed is the source of the loop's batches. One goroutine uses it.
type feed interface {
	// next fills w with the next batch. It returns io.EOF at the end, and errNotYet if more may come later.
	next(w *work) error
	// count returns how many batches the feed has given, in this process and those before.
	count() int64
	close()
}

// errNotYet means that other trainers have the remaining data, and may give it up, or that a stream has nothing
// new.
var errNotYet = errors.New("no split of the data is free")

// splitsPerTrainer is the number of splits per trainer and epoch. After a death other workers read at most one
// split again, and the last splits of an epoch keep every trainer busy.
const splitsPerTrainer = 8

// partPlan returns the splits of the training examples. All trainers of a job compute the same plan.
func (c *Config) partPlan(examples int64) client.PartPlan {
	share := (examples + int64(c.Trainers)*splitsPerTrainer - 1) / (int64(c.Trainers) * splitsPerTrainer)
	batch := int64(c.Batch)
	p := client.PartPlan{
		Examples: examples, PartExamples: (share + batch - 1) / batch * batch, Epochs: int64(c.Epochs),
		ByRank: c.Mode == Sync && c.Quorum == 1 && c.Deadline == 0, InLog: c.usesSteps(),
	}
	if c.Epochs == 0 && c.Steps == 0 {
		p.Epochs = 1
	}
	return p
}

// usesSteps reports whether every shard knows the job's workers.
func (c *Config) usesSteps() bool { return c.Mode == Sync || c.Mode == SSP }

// usesSplits reports whether the scheduler divides the data of the job. Each trainer reads a fixed share if it did
// so in the checkpoint that the run resumes from, and if the examples have no numbers.
func (c *Config) usesSplits(set data.Set, saved savedSplits) (bool, error) {
	_, ranger := set.(data.Ranger)
	able := ranger && set.TrainSize() > 0
	switch {
	case c.Parts == nil && saved.found:
		return able && saved.parts != nil, nil
	case c.Parts == nil:
		return able && c.Trainers > 1, nil
	case *c.Parts && !able:
		return false, invalid("parts: %s cannot be divided by the scheduler, which needs a bounded data set that can "+
			"be read from any position", set.Name())
	case saved.found && *c.Parts != (saved.parts != nil):
		return *c.Parts, invalid("the data was divided differently when the checkpoint was made: parts is %v now",
			*c.Parts)
	}
	return *c.Parts, nil
}

// splitSource is the registry, for reading data.
type splitSource interface {
	// NextPart asks for a split. ahead is the number of splits that the trainer holds and has not begun.
	NextPart(ctx context.Context, take int64, ahead int) (client.Part, error)
	EndPart(ctx context.Context, p client.Part) error
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

// dataSplits reads the splits of the data that the scheduler gives to this trainer, and reports the trained ones.
//
// Goroutines: the loop calls next; any goroutine calls batchDone, reached and positions. A goroutine of its own,
// from the first next to close, makes all calls to the scheduler: it takes splits ahead and ends trained ones. It
// waits without limit for a scheduler that is away, and the loop waits for it only when no split is left. One
// goroutine for all calls keeps the order of take and end, and lets training continue during a call.
type dataSplits struct {
	set    data.Set
	source splitSource
	plan   client.PartPlan
	ctx    context.Context // of the run
	// sendsIdleSteps: while other trainers have the remaining data, next returns idle batches, because they wait for
	// this trainer's steps.
	sendsIdleSteps bool

	// The goroutine that reads owns these fields.
	src     data.Source // the source of the split that is read; nil between splits
	reading *heldSplit
	batches int64
	after   position
	running bool // the goroutine that calls the scheduler is running
	end     context.CancelFunc
	ended   chan struct{}

	wake chan struct{} // capacity 1: that goroutine has something to do

	mu        sync.Mutex
	changed   chan struct{} // closed at the next change of the scheduler's answers
	ahead     []client.Part // taken and not begun
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
	client.Part
	read  int64
	acked int64           // all examples before it are acknowledged
	ahead map[int64]int64 // acknowledged batches behind a gap: begin → end
}

// splitRange is the place of a batch in a split; without a split, that of a batch without data. It implements
// [mode.Place].
type splitRange struct {
	splits   *dataSplits
	part     *heldSplit
	from, to int64
}

// Done implements [mode.Place].
func (r splitRange) Done() error { return r.splits.batchDone(r) }

// Positions implements [mode.Place].
func (r splitRange) Positions() []rowraft.Position { return r.splits.positions(r) }

func (d *dataSplits) count() int64 { return d.batches }

func (d *dataSplits) close() {
	if d.src != nil {
		d.src.Close()
		d.src = nil
	}
	if d.running {
		d.end()
		<-d.ended
	}
}

// start starts the goroutine that calls the scheduler.
func (d *dataSplits) start() {
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

// next implements feed.
func (d *dataSplits) next(w *work) error {
	d.start()
	for {
		for d.src == nil {
			idle, err := d.begin()
			if err != nil {
				return err
			}
			if idle {
				d.batches++
				w.Idle, w.Place, w.Step, w.after = true, splitRange{splits: d}, d.batches, d.after
				return nil
			}
		}
		err := d.src.Next(w.data)
		if err == io.EOF {
			d.src.Close()
			d.src = nil
			continue
		} else if err != nil {
			return err
		}
		d.batches++
		d.mu.Lock()
		p := d.reading
		w.Place = splitRange{d, p, p.read, p.read + int64(w.data.N)}
		p.read += int64(w.data.N)
		d.mu.Unlock()
		d.after = position{epoch: p.Epoch}
		w.Idle, w.Step, w.after = false, d.batches, d.after
		return nil
	}
}

// begin opens the next split. It returns errNotYet if there is none yet, io.EOF if none is left, and idle if the
// trainer must take part in a step without data.
func (d *dataSplits) begin() (idle bool, err error) {
	poll := time.NewTimer(splitPoll)
	defer poll.Stop()
	asked := time.Now()
	for {
		d.mu.Lock()
		if len(d.ahead) > 0 {
			err := d.openLocked()
			d.mu.Unlock()
			d.wakeCaller()
			return false, err
		}
		done, err, held, changed := d.done, d.err, d.allTaken && d.refusedAt.After(asked.Add(-splitRetry)), d.changed
		d.starved = true
		d.mu.Unlock()
		switch {
		case d.ctx.Err() != nil:
			return false, errNotYet // ctx ended: the loop ends
		case err != nil:
			return false, err
		case done:
			return false, io.EOF
		case d.sendsIdleSteps && held:
			return true, nil
		}
		d.wakeCaller()
		select {
		case <-changed:
		case <-poll.C:
			return false, errNotYet
		case <-d.ctx.Done():
		}
	}
}

// openLocked begins to read the split that was taken first.
// REQUIRES: d.mu is held, and a split was taken.
func (d *dataSplits) openLocked() (err error) {
	p := d.ahead[0]
	d.ahead, d.starved = d.ahead[1:], false
	h := &heldSplit{Part: p, read: p.Offset, acked: p.Offset, ahead: make(map[int64]int64)}
	d.held = append(d.held, h)
	if p.From+p.Offset >= p.To { // its last reader ended before it could report the end
		d.toEnd = append(d.toEnd, h)
		return nil
	}
	d.reading = h
	d.src, err = d.set.(data.Ranger).Range(p.From+p.Offset, p.To)
	return err
}

// wakeCaller makes the goroutine that calls the scheduler look for work.
func (d *dataSplits) wakeCaller() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// callScheduler makes the calls to the scheduler, one at a time, until one is refused finally or ctx ends.
func (d *dataSplits) callScheduler(ctx context.Context) {
	for taken := int64(0); ctx.Err() == nil; {
		d.mu.Lock()
		var end *heldSplit
		if len(d.toEnd) > 0 {
			end = d.toEnd[0]
		}
		ahead := len(d.ahead)
		wait := d.nextCallLocked(time.Now())
		d.mu.Unlock()
		var err error
		switch {
		case end != nil:
			err = d.source.EndPart(ctx, end.Part)
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
		var p client.Part
		if end == nil {
			p, err = d.source.NextPart(ctx, taken+1, ahead)
		}
		if ctx.Err() != nil && err != nil {
			return
		}
		d.mu.Lock()
		switch {
		case end != nil && err == nil:
			d.toEnd = d.toEnd[1:]
			d.held = slices.DeleteFunc(d.held, func(q *heldSplit) bool { return q == end })
		case end != nil:
			d.err = fmt.Errorf("end part %d of epoch %d of the data: %w", end.Part.Part, end.Epoch, err)
		case err == nil:
			taken++
			d.ahead, d.refusedAt, d.allTaken = append(d.ahead, p), time.Time{}, false
		case errors.Is(err, client.ErrNoParts):
			d.done = true
		case errors.Is(err, client.ErrPartsHeld):
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
func (d *dataSplits) nextCallLocked(now time.Time) time.Duration {
	const never = time.Hour
	every := splitAheadRetry
	switch {
	case d.done || len(d.ahead) >= splitsAhead:
		return never
	case d.refusedAt.IsZero():
		return 0
	case d.starved && d.sendsIdleSteps:
		every = splitRetry
	case d.starved:
		every = splitPoll
	}
	return every - now.Sub(d.refusedAt)
}

// batchDone records that a batch is trained and acknowledged, or was skipped. The calling goroutine reports a fully
// trained split later. Safe for concurrent use.
func (d *dataSplits) batchDone(at splitRange) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at.part == nil {
		return d.err
	}
	p := at.part
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

// flush returns when the scheduler knows all trained splits, or ctx ends. It waits without limit for a scheduler
// that is away.
func (d *dataSplits) flush(ctx context.Context) error {
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

// reached returns how far this trainer is in the splits that it holds, those included that it has not begun.
func (d *dataSplits) reached() (out []client.PartReached) {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.held {
		out = append(out, client.PartReached{Epoch: p.Epoch, Part: p.Part.Part, Acknowledged: p.acked, Read: p.read})
	}
	for _, p := range d.ahead {
		out = append(out, client.PartReached{Epoch: p.Epoch, Part: p.Part, Acknowledged: p.Offset, Read: p.Offset})
	}
	return out
}

// feed opens the source of the run's batches.
func (j *Job) feed(ctx context.Context) feed {
	if j.parts != nil {
		j.parts.ctx, j.parts.batches = ctx, j.step
		return j.parts
	}
	return &repeated{set: j.set, rank: j.cfg.rank(), trainers: j.cfg.Trainers, epochs: j.epochs(), batches: j.step,
		at: j.at}
}

// batchDone records that a batch without a push is over.
func (j *Job) batchDone(p mode.Place) error {
	if p == nil {
		return nil
	}
	if err := p.Done(); err != nil {
		return j.report.Fail(err)
	}
	return nil
}

// positions returns what the push of a batch stores about this trainer's splits: how far each is acknowledged, and
// where the batch ends in its own. If the trainer dies, another one continues from there.
func (d *dataSplits) positions(at splitRange) (out []rowraft.Position) {
	if d == nil || !d.plan.InLog {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.held {
		both := p.Reached(&d.plan, p.acked, at.to)
		if p != at.part {
			out = append(out, both[0])
			continue
		}
		out = append(out, both[:]...)
	}
	slices.SortFunc(out, func(a, b rowraft.Position) int { return cmp.Compare(a.Part, b.Part) })
	return out[:min(len(out), wire.MaxPushPositions)]
}

// idleStep takes part in a step without a batch.
func (j *Job) idleStep(w *work) (push bool, err error) {
	w.Empty = true
	if err := j.hybrid.learn(w); err != nil {
		return false, fmt.Errorf("step %d: %w", w.Step, err)
	}
	j.step++
	if push = j.mode.PushesEmpty(); !push {
		j.report.batchEnded()
	}
	return push, nil
}
