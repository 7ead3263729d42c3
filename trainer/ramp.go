package trainer

import (
	"context"
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
// batchesPerStep batches. The trainers get their places in turn: first one batch each, by rank, then more.
//
// Trainers that wait for each other (modes sync and ssp, averaged weights), and those with a fixed share of the data,
// all begin at once: there the limit is at least one batch per trainer. In mode geo a trainer reads its own copy, and
// the mode begins with short rounds instead. A model that only sleeps learns nothing and has no ramp.
type ramp struct {
	every    int64 // batches after which one more may be under way
	rank     int
	trainers int
	together bool         // all trainers begin at once
	begun    atomic.Bool  // this trainer has had its turn to begin
	batches  atomic.Int64 // batches of the job, as far as this trainer knows
}

// batchesPerStep is how many batches a job trains before one more may be under way. docs/training.md has
// the measured quality of others.
const batchesPerStep = 100

// newRamp returns the ramp of a trainer. share: each trainer reads a fixed share of the data, or waits for the others.
func newRamp(c *Config, share bool) *ramp {
	r := &ramp{every: batchesPerStep, rank: c.rank(), trainers: c.Trainers}
	if c.rampEvery != 0 {
		r.every = c.rampEvery
	}
	if c.Mode == Geo || c.Model.Sleep > 0 {
		r.every = 0
	}
	if c.Mode == Sync { // a step is one batch of the job
		r.rank, r.trainers = 0, 1
	}
	r.together = r.trainers > 1 && (c.Mode != Async || share)
	return r
}

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
	all, trainers := 1+r.batches.Load()/r.every, int64(r.trainers)
	mine := all / trainers
	if int64(r.rank) < all%trainers {
		mine++
	}
	if r.together || r.begun.Load() {
		mine = max(mine, 1)
	}
	return int(min(mine, int64(most)))
}

// waits reports whether trainers wait until the job has trained enough batches.
func (r *ramp) waits() bool { return r.every > 0 && r.trainers > 1 && !r.together }

// progressTable ends the name of the table with the row that counts the job's pushes.
const progressTable = ".progress"

// Dimensions of the row of the progress table.
const (
	progressPushes = 0 // acknowledged pushes of the job
	progressEnds   = 1 // trainers that have found no more data
	progressDim    = 2
)

var (
	// progressOptimizer adds 1 for a gradient of −1. A float32 counts up to 2^24; the ramp is over long before, and
	// staleness is not measured any more from then on.
	progressOptimizer = rowraft.Optimizer{Kind: rowraft.SGD, LR: 1}
	progressKeys      = []rowraft.Key{0}
	onePush           = []float32{-1, 0} // the gradient of a push
)

// countsPushes reports whether the trainers of the job count their pushes in a row of their own.
func (c *Config) countsPushes() bool { return c.Trainers > 1 && c.Mode == Async }

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
	return append(segs, tables.Segment{Table: p.table, Dim: progressDim, Keys: progressKeys, Values: values})
}

// read reads the row.
func (p *progress) read(ctx context.Context) (row [progressDim]float32, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	err = p.tables.Pull(ctx, p.with(nil, row[:]))
	p.ramp.reached(int64(row[progressPushes]))
	return row, err
}

// staleEvery is how often a trainer measures the staleness of a batch.
const staleEvery = 8

// measure counts the pushes of the job that were applied between the pull and the push of w, both over. Training
// continues without the figure if the row cannot be read.
func (p *progress) measure(ctx context.Context, w *work) {
	if p == nil || !p.measures || w.Step%staleEvery != 0 {
		return
	}
	if row, err := p.read(ctx); err == nil && row[progressPushes] < 1<<24 {
		p.report.AddStaleness(max(int64(row[progressPushes]-w.progress[progressPushes])-1, 0))
	}
}

// end tells trainers that wait for their turn that the data is over.
func (p *progress) end(ctx context.Context) error {
	if p == nil || !p.ramp.waits() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	return p.tables.Push(ctx, p.with(nil, []float32{0, -1}))
}

// rampPoll is how often a waiting trainer reads the progress of the job.
const rampPoll = 50 * time.Millisecond

// rampFeed gives no batches until it is this trainer's turn to begin. The turn also comes when the data is over, and
// when the progress does not change for a lease: the trainers that should train may be dead, or not there yet.
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
	row, err := f.j.progress.read(f.ctx)
	if err != nil {
		return stopped(f.ctx, err)
	}
	if f.movedAt.IsZero() && f.j.ramp.limit(1) == 0 {
		f.j.report.Note("this trainer begins after batch %d of the job: the first batches are trained one after the "+
			"other, because they move the rows most", int64(f.j.ramp.rank)*f.j.ramp.every)
	}
	if now := time.Now(); row[progressPushes] != f.pushes || f.movedAt.IsZero() {
		f.pushes, f.movedAt = row[progressPushes], now
	}
	if f.j.ramp.limit(1) > 0 || row[progressEnds] > 0 || time.Since(f.movedAt) > f.j.cfg.lease() {
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
