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
	"github.com/rowraft/rowraft/wire"
)

// feed is where the loop's batches come from. It is used by one goroutine.
type feed interface {
	// next fills w with the next batch. It returns io.EOF at the end, and errNotYet when
	// there may be more later.
	next(w *work) error
	// count is how many batches it has given, those of the processes before included.
	count() int64
	close()
}

// errNotYet says that others have what is left of the data, and may leave it, or that a
// stream has nothing new.
var errNotYet = errors.New("no part of the data is free")

// partsPerTrainer is into how many parts a trainer's share of an epoch is cut: what a
// death makes others read again is at most one of them, and the last ones of an epoch
// keep everybody busy.
const partsPerTrainer = 8

// partPlan cuts the training part of a set. All trainers of a job come to the same.
func (c *Config) partPlan(examples int64) client.PartPlan {
	share := (examples + int64(c.Trainers)*partsPerTrainer - 1) / (int64(c.Trainers) * partsPerTrainer)
	batch := int64(c.Batch)
	p := client.PartPlan{
		Examples: examples, PartExamples: (share + batch - 1) / batch * batch, Epochs: int64(c.Epochs),
		ByRank: c.Mode == Sync && c.Quorum == 1 && c.Deadline == 0, InLog: c.inShards(),
	}
	if c.Epochs == 0 && c.Steps == 0 {
		p.Epochs = 1
	}
	return p
}

// inShards says whether every shard knows the job's workers.
func (c *Config) inShards() bool { return c.Mode == Sync || c.Mode == SSP }

// wantsParts says whether the scheduler divides the data of the job. Each trainer reads
// its own share where it did so before a checkpoint from which the run goes on, and where the data has no numbers.
func (c *Config) wantsParts(set data.Set, saved savedParts) (bool, error) {
	_, ranger := set.(data.Ranger)
	able := ranger && set.TrainSize() > 0
	switch {
	case c.Parts == nil && saved.there:
		return able && saved.parts != nil, nil
	case c.Parts == nil:
		return able && c.Trainers > 1, nil
	case *c.Parts && !able:
		return false, invalid("parts: %s cannot be divided by the scheduler: that wants a bounded data set that can be read from any place", set.Name())
	case saved.there && *c.Parts != (saved.parts != nil):
		return *c.Parts, invalid("the data was divided otherwise when the checkpoint was made: parts is %v now", *c.Parts)
	}
	return *c.Parts, nil
}

// partGiver is the registry as the data sees it.
type partGiver interface {
	// NextPart asks for a part. ahead is how many the trainer has that it has not begun.
	NextPart(ctx context.Context, take int64, ahead int) (client.Part, error)
	EndPart(ctx context.Context, p client.Part) error
}

const (
	// partsAhead is how many parts a trainer holds that it has not begun, so that it can train on while the scheduler
	// is away.
	partsAhead = 2
	// partPoll is how long a feed waits for a part before the loop may do something else, and how often it asks for one
	// that others have.
	partPoll = 200 * time.Millisecond
	// askAgain is how often a trainer that keeps step asks for it.
	askAgain = 25 * time.Millisecond
	// aheadAgain is how often a trainer asks that has parts still to begin.
	aheadAgain = time.Second
)

// dataParts reads the parts of the data that the scheduler gives to this trainer, and
// tells it of those that are trained.
//
// Goroutines: the loop calls next, any goroutine covered, reached and positions. A goroutine of its own, from the first
// next to close, makes all calls to the scheduler: it takes parts ahead and ends those that are trained. It waits
// without limit for a scheduler that is away, and the loop waits for it only when no part is left.
type dataParts struct {
	set      data.Set
	giver    partGiver
	plan     client.PartPlan
	ctx      context.Context // of the run
	keepStep bool            // while others have what is left there are idle batches: somebody waits for this trainer's

	// Of the goroutine that reads.
	src     data.Source // of the part that is read; nil between parts
	reading *heldPart
	batches int64
	after   position
	running bool // the goroutine that calls the scheduler
	end     context.CancelFunc
	ended   chan struct{}

	wake chan struct{} // capacity 1: that goroutine has something to do

	mu      sync.Mutex
	changed chan struct{} // closed at the next change of what the scheduler has answered
	ahead   []client.Part // taken and not begun
	held    []*heldPart   // begun, in the order they were taken
	toEnd   []*heldPart   // of them, those that are trained and that the scheduler is yet to be told of
	starved bool          // the loop waits for a part
	told    time.Time     // when the scheduler answered last that there is none now; zero: it has answered otherwise since
	none    bool          // that was for want of any: others have what is left
	done    bool          // no part is left
	err     error         // of a call; there are no more
}

// heldPart is a part that is not trained to its end. Offsets are of its examples.
type heldPart struct {
	client.Part
	read  int64
	acked int64           // without a gap
	ahead map[int64]int64 // batches that were acknowledged before those before them: begin → end
}

// piece is the place of a batch in a part.
type piece struct {
	part     *heldPart
	from, to int64
}

func (d *dataParts) count() int64 { return d.batches }

func (d *dataParts) close() {
	if d.src != nil {
		d.src.Close()
		d.src = nil
	}
	if d.running {
		d.end()
		<-d.ended
	}
}

// start begins to call the scheduler.
func (d *dataParts) start() {
	if d.running {
		return
	}
	d.running, d.wake, d.changed, d.ended = true, make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	var ctx context.Context
	ctx, d.end = context.WithCancel(d.ctx)
	go func() {
		defer close(d.ended)
		d.call(ctx)
	}()
}

// next implements feed.
func (d *dataParts) next(w *work) error {
	d.start()
	for {
		for d.src == nil {
			idle, err := d.begin()
			if err != nil {
				return err
			}
			if idle {
				d.batches++
				w.idle, w.piece, w.step, w.after = true, piece{}, d.batches, d.after
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
		w.piece = piece{p, p.read, p.read + int64(w.data.N)}
		p.read = w.piece.to
		d.mu.Unlock()
		d.after = position{epoch: p.Epoch}
		w.idle, w.step, w.after = false, d.batches, d.after
		return nil
	}
}

// begin opens the next part. It returns errNotYet if there is none yet, io.EOF if none is left, and that the trainer is
// to take part in a step without one.
func (d *dataParts) begin() (idle bool, err error) {
	poll := time.NewTimer(partPoll)
	defer poll.Stop()
	asked := time.Now()
	for {
		d.mu.Lock()
		if len(d.ahead) > 0 {
			err := d.openLocked()
			d.mu.Unlock()
			d.rouse()
			return false, err
		}
		done, err, held, changed := d.done, d.err, d.none && d.told.After(asked.Add(-askAgain)), d.changed
		d.starved = true
		d.mu.Unlock()
		switch {
		case d.ctx.Err() != nil:
			return false, errNotYet // the loop ends
		case err != nil:
			return false, err
		case done:
			return false, io.EOF
		case d.keepStep && held:
			return true, nil
		}
		d.rouse()
		select {
		case <-changed:
		case <-poll.C:
			return false, errNotYet
		case <-d.ctx.Done():
		}
	}
}

// openLocked begins to read the part that was taken first.
// REQUIRES: d.mu is held, and a part was taken.
func (d *dataParts) openLocked() (err error) {
	p := d.ahead[0]
	d.ahead, d.starved = d.ahead[1:], false
	h := &heldPart{Part: p, read: p.Offset, acked: p.Offset, ahead: make(map[int64]int64)}
	d.held = append(d.held, h)
	if p.From+p.Offset >= p.To { // its last reader ended before it could tell the scheduler
		d.toEnd = append(d.toEnd, h)
		return nil
	}
	d.reading = h
	d.src, err = d.set.(data.Ranger).Range(p.From+p.Offset, p.To)
	return err
}

// rouse has the goroutine that calls the scheduler look for something to do.
func (d *dataParts) rouse() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// call makes the calls to the scheduler, one at a time, until one is refused for good or ctx ends.
func (d *dataParts) call(ctx context.Context) {
	for taken := int64(0); ctx.Err() == nil; {
		d.mu.Lock()
		var end *heldPart
		if len(d.toEnd) > 0 {
			end = d.toEnd[0]
		}
		ahead := len(d.ahead)
		wait := d.untilAskLocked(time.Now())
		d.mu.Unlock()
		var err error
		switch {
		case end != nil:
			err = d.giver.EndPart(ctx, end.Part)
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
			p, err = d.giver.NextPart(ctx, taken+1, ahead)
		}
		if ctx.Err() != nil && err != nil {
			return
		}
		d.mu.Lock()
		switch {
		case end != nil && err == nil:
			d.toEnd = d.toEnd[1:]
			d.held = slices.DeleteFunc(d.held, func(q *heldPart) bool { return q == end })
		case end != nil:
			d.err = fmt.Errorf("end part %d of epoch %d of the data: %w", end.Part.Part, end.Epoch, err)
		case err == nil:
			taken++
			d.ahead, d.told, d.none = append(d.ahead, p), time.Time{}, false
		case errors.Is(err, client.ErrNoParts):
			d.done = true
		case errors.Is(err, client.ErrPartsHeld):
			d.told, d.none = time.Now(), ahead == 0
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

// untilAskLocked returns how long to wait before the next part is asked for.
// REQUIRES: d.mu is held.
func (d *dataParts) untilAskLocked(now time.Time) time.Duration {
	const never = time.Hour
	every := aheadAgain
	switch {
	case d.done || len(d.ahead) >= partsAhead:
		return never
	case d.told.IsZero():
		return 0
	case d.starved && d.keepStep:
		every = askAgain
	case d.starved:
		every = partPoll
	}
	return every - now.Sub(d.told)
}

// covered notes that a batch is trained and acknowledged, or was skipped for good. The scheduler is told later of a
// part that is trained to its end. Any goroutine may call it.
func (d *dataParts) covered(at piece) error {
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
		d.rouse()
	}
	return d.err
}

// flush returns when the scheduler knows all parts that are trained, or ctx ends. It waits without limit for a
// scheduler that is away.
func (d *dataParts) flush(ctx context.Context) error {
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

// reached is how far this trainer is in the parts that it has, those included that it has not begun.
func (d *dataParts) reached() (out []client.PartReached) {
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
	return &repeated{set: j.set, rank: j.cfg.rank(), trainers: j.cfg.Trainers, epochs: j.epochs(), batches: j.step, at: j.at}
}

// covered notes that a batch is trained and acknowledged, or will never be: it was skipped,
// or its step was closed without it.
func (j *Job) covered(at piece) error {
	if j.parts == nil {
		return nil
	}
	if err := j.parts.covered(at); err != nil {
		return j.fail(err)
	}
	return nil
}

// positions are what the push of a batch says of the parts that this trainer has: how far
// each is acknowledged, and to where the batch takes its own. A trainer that dies is followed
// from there.
func (d *dataParts) positions(at piece) (out []rowraft.Position) {
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

// keepStep takes part in a step without a batch.
func (j *Job) keepStep(w *work) (push bool, err error) {
	w.empty = true
	if err := j.hybrid.learn(w); err != nil {
		return false, fmt.Errorf("step %d: %w", w.step, err)
	}
	j.step++
	if push = j.way.empties(); !push {
		j.meter.end()
	}
	return push, nil
}
