package trainer

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tables"
)

// ramp limits how many batches of the job are under way, from their pull to the end of their push. The gradients of a
// batch miss the pushes of all others that are under way. The first batches of a job move rows most: an adaptive
// optimizer has seen few gradients, and its steps are long. Several such steps from one state of the rows go too far,
// and the model may not recover. So a job begins with one batch at a time, and one more may be under way after every
// batchesPerStep batches. The trainers get their places in turn: first one batch each, by rank, then more. When a
// trainer joins or leaves the job, the places are divided again.
//
// Trainers that wait for each other (modes sync and ssp, averaged weights), and those with a fixed share of the data,
// all begin at once: there the limit is at least one batch per trainer. In mode geo a trainer reads its own copy, and
// the mode begins with short rounds instead. A model that only sleeps learns nothing and has no ramp.
type ramp struct {
	every    int64        // batches after which one more may be under way
	steps    bool         // a step of all trainers counts as one batch of the job
	together bool         // all trainers begin at once
	begun    atomic.Bool  // this trainer has had its turn to begin
	batches  atomic.Int64 // batches of the job, as far as this trainer knows
	turn     atomic.Pointer[turn]
}

// turn is the place of a trainer among the trainers of its job. Immutable.
type turn struct {
	place    int // number of trainers with a lower rank
	trainers int
}

// batchesPerStep is how many batches a job trains before one more may be under way. docs/training.md has
// the measured quality of others.
const batchesPerStep = 100

// newRamp returns the ramp of a trainer. share: each trainer reads a fixed share of the data, or waits for the others.
func newRamp(c *Config, share bool) *ramp {
	r := &ramp{every: batchesPerStep, steps: c.Mode == Sync, together: c.Mode != Async || share}
	r.turn.Store(&turn{c.rank(), c.Trainers})
	if c.rampEvery != 0 {
		r.every = c.rampEvery
	}
	if c.Mode == Geo || c.Model.Sleep > 0 {
		r.every = 0
	}
	return r
}

// members records the ranks that train in the job, ascending; rank is that of this trainer.
func (r *ramp) members(ranks []int, rank int) {
	if place := slices.Index(ranks, rank); place >= 0 {
		r.turn.Store(&turn{place, len(ranks)})
	}
}

// alone reports whether no other trainer trains in the job.
func (r *ramp) alone() bool { return r.turn.Load().trainers == 1 }

// leads reports whether this trainer has the lowest rank of those that train in the job.
func (r *ramp) leads() bool { return r.turn.Load().place == 0 }

// reached records that the job has trained so many batches.
func (r *ramp) reached(batches int64) {
	for {
		was := r.batches.Load()
		if batches <= was || r.batches.CompareAndSwap(was, batches) {
			return
		}
	}
}

// limit returns how many batches of this trainer may be under way, at most most.
func (r *ramp) limit(most int) int {
	if r.every <= 0 {
		return most
	}
	mine := 1 + r.batches.Load()/r.every
	if now := r.turn.Load(); !r.steps {
		all, trainers := mine, int64(now.trainers)
		mine = all / trainers
		if int64(now.place) < all%trainers {
			mine++
		}
	}
	if r.together || r.begun.Load() {
		mine = max(mine, 1)
	}
	return int(min(mine, int64(most)))
}

// stale returns the bound of copies of rows, in batches of this trainer: it rises to most like the number of batches
// under way.
func (r *ramp) stale(most int64) int64 {
	if r.every <= 0 {
		return most
	}
	steps := r.batches.Load() / r.every
	if !r.together { // each trainer misses that many batches of each of the others
		steps /= int64(r.turn.Load().trainers)
	}
	return min(steps, most)
}

// inTurn reports whether a trainer may have to wait until the job has trained enough batches.
func (r *ramp) inTurn() bool { return r.every > 0 && !r.together }

var (
	// progressOptimizer adds 1 for a gradient of −1. A float32 counts up to 2^24; the ramp is over long before, and
	// staleness is not measured any more from then on.
	progressOptimizer = rowraft.Optimizer{Kind: rowraft.SGD, LR: 1}
	progressKeys      = []rowraft.Key{0}
	onePush           = []float32{-1} // the gradient of a push
)

// progressSchema returns the table in which the trainers of a job count their pushes. counts is false if they do not:
// the job has one trainer, and no other may join. A checkpoint may lack the table: the count then begins at 0.
func progressSchema(c *Config) (s rowraft.Schema, counts bool) {
	return rowraft.Schema{
		Name: c.Job + tables.ProgressSuffix, Kind: rowraft.Dense, Dim: 1, Optimizer: progressOptimizer,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
	}, c.Mode == Async && (c.Trainers > 1 || c.splitData)
}

// progress is the row that counts the job's pushes. A nil progress does nothing. Safe for concurrent use.
type progress struct {
	tables   tables.Tables
	table    rowraft.TableID
	patience time.Duration
	ramp     *ramp
	report   *report.Report
	measures bool // with bfloat16 on the wire the count is too coarse to measure staleness
}

// with adds the row to the segments of a pull or push; values is its part.
func (p *progress) with(segs []tables.Segment, values []float32) []tables.Segment {
	if p == nil {
		return segs
	}
	return append(segs, tables.Segment{Table: p.table, Dim: 1, Keys: progressKeys, Values: values})
}

// read returns the count.
func (p *progress) read(ctx context.Context) (float32, error) {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	var pushes [1]float32
	err := p.tables.Pull(ctx, p.with(nil, pushes[:]))
	p.ramp.reached(int64(pushes[0]))
	return pushes[0], err
}

// staleEvery is how often a trainer measures the staleness of a batch.
const staleEvery = 8

// measured reports whether staleness is measured. A trainer that is alone knows it without a measurement.
func (p *progress) measured() bool { return p != nil && p.measures && !p.ramp.alone() }

// measure counts the pushes of the job that were applied between the pull and the push of w, both over. Training
// continues without the figure if the row cannot be read.
func (p *progress) measure(ctx context.Context, w *work) {
	if !p.measured() || w.Step%staleEvery != 0 {
		return
	}
	if pushes, err := p.read(ctx); err == nil && pushes < 1<<24 {
		p.report.AddStaleness(max(int64(pushes-w.pushes[0])-1, 0))
	}
}

// rampPoll is how often a waiting trainer reads the progress of the job.
const rampPoll = 50 * time.Millisecond

// rampFeed gives no batches until it is this trainer's turn to begin. The turn also comes when the trainers before it
// have left the job, and when the count of pushes does not change for a lease: the trainers that should train may be
// dead, or not there yet.
type rampFeed struct {
	feed
	j       *Job
	ctx     context.Context
	pushes  float32
	movedAt time.Time
}

// next implements feed.
func (f *rampFeed) next(w *work) error {
	if !f.j.ramp.begun.Load() {
		if err := f.wait(); err != nil {
			return err
		}
		f.j.ramp.begun.Store(true)
	}
	return f.feed.next(w)
}

// wait returns nil when the trainer may begin, and data.ErrNoneYet after some time.
func (f *rampFeed) wait() error {
	if f.j.ramp.limit(1) > 0 {
		return nil
	}
	pushes, err := f.j.progress.read(f.ctx)
	if err != nil {
		return stopped(f.ctx, err)
	}
	if f.movedAt.IsZero() && f.j.ramp.limit(1) == 0 {
		f.j.report.Note("this trainer begins after batch %d of the job: the first batches are trained one after the "+
			"other, because they move the rows most", int64(f.j.ramp.turn.Load().place)*f.j.ramp.every)
	}
	if now := time.Now(); pushes != f.pushes || f.movedAt.IsZero() {
		f.pushes, f.movedAt = pushes, now
	}
	if f.j.ramp.limit(1) > 0 || time.Since(f.movedAt) > f.j.cfg.lease() {
		return nil
	}
	poll := time.NewTimer(rampPoll)
	defer poll.Stop()
	select {
	case <-poll.C:
	case <-f.ctx.Done():
	}
	return data.ErrNoneYet
}
