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
	NextPart(ctx context.Context, take int64) (client.Part, error)
	EndPart(ctx context.Context, p client.Part) error
}

const (
	// partPoll is how long a feed waits for a part that others have before the loop may do
	// something else.
	partPoll = 200 * time.Millisecond
	// askAgain is how long a trainer that keeps step does not ask again.
	askAgain = 25 * time.Millisecond
)

// dataParts reads the parts of the data that the scheduler gives to this trainer, and
// tells it of those that are trained.
type dataParts struct {
	set      data.Set
	giver    partGiver
	plan     client.PartPlan
	ctx      context.Context // of the run
	patience time.Duration
	keepStep bool // while others have what is left there are idle batches: somebody waits for this trainer's

	// Of the goroutine that reads.
	src     data.Source // of the last part taken; nil between parts
	taken   int64
	batches int64
	told    time.Time // that others have what is left
	after   position

	mu   sync.Mutex
	held []*heldPart // in the order they were taken; the last may still be read
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
}

func (d *dataParts) next(w *work) error {
	for {
		for d.src == nil {
			err := d.take()
			if err == errNotYet && d.keepStep && d.ctx.Err() == nil {
				d.batches++
				w.idle, w.piece, w.step, w.after = true, piece{}, d.batches, d.after
				return nil
			}
			if err != nil {
				return err
			}
		}
		err := d.src.Next(w.data)
		if err == io.EOF {
			d.close()
			continue
		} else if err != nil {
			return err
		}
		d.batches++
		d.mu.Lock()
		p := d.held[len(d.held)-1]
		w.piece = piece{p, p.read, p.read + int64(w.data.N)}
		p.read = w.piece.to
		d.mu.Unlock()
		d.after = position{epoch: p.Epoch}
		w.idle, w.step, w.after = false, d.batches, d.after
		return nil
	}
}

// take asks for a part and opens it, unless nothing is left of it.
func (d *dataParts) take() error {
	if d.keepStep && time.Since(d.told) < askAgain {
		return errNotYet
	}
	ctx, cancel := context.WithTimeout(d.ctx, d.patience)
	defer cancel()
	p, err := d.giver.NextPart(ctx, d.taken+1)
	switch {
	case errors.Is(err, client.ErrNoParts):
		return io.EOF
	case errors.Is(err, client.ErrPartsHeld) && d.keepStep:
		d.told = time.Now()
		return errNotYet
	case errors.Is(err, client.ErrPartsHeld):
		select {
		case <-time.After(partPoll):
		case <-d.ctx.Done():
		}
		return errNotYet
	case err != nil && d.ctx.Err() != nil:
		return errNotYet // the loop ends
	case err != nil:
		return err
	}
	if p.From+p.Offset >= p.To { // who had it died before it could say so
		d.taken++
		return d.giver.EndPart(ctx, p)
	}
	if d.src, err = d.set.(data.Ranger).Range(p.From+p.Offset, p.To); err != nil {
		return err
	}
	d.taken++
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held = append(d.held, &heldPart{Part: p, read: p.Offset, acked: p.Offset, ahead: make(map[int64]int64)})
	return nil
}

// covered notes that a batch is trained and acknowledged, or was skipped for good, and
// tells the scheduler of a part that is trained to its end. Any goroutine may call it.
func (d *dataParts) covered(ctx context.Context, at piece) error {
	if at.part == nil {
		return nil
	}
	d.mu.Lock()
	p := at.part
	p.ahead[at.from] = at.to
	for to, ok := p.ahead[p.acked]; ok; to, ok = p.ahead[p.acked] {
		delete(p.ahead, p.acked)
		p.acked = to
	}
	ended := p.acked == p.To-p.From
	d.mu.Unlock()
	if !ended {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, d.patience)
	defer cancel()
	if err := d.giver.EndPart(ctx, p.Part); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held = slices.DeleteFunc(d.held, func(q *heldPart) bool { return q == p })
	return nil
}

// reached is how far this trainer is in the parts that it has.
func (d *dataParts) reached() (out []client.PartReached) {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.held {
		out = append(out, client.PartReached{Epoch: p.Epoch, Part: p.Part.Part, Acknowledged: p.acked, Read: p.read})
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
func (j *Job) covered(ctx context.Context, at piece) error {
	if j.parts == nil {
		return nil
	}
	if err := j.parts.covered(ctx, at); err != nil {
		return j.fail(fmt.Errorf("end a part of the data: %w", err))
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
