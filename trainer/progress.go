package trainer

import (
	"cmp"
	"context"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/ramp"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tables"
)

// newRamp returns the ramp of a trainer. share: each trainer reads a fixed share of the data, or waits for the others.
//
// A trainer in mode geo reads its own copy, and the mode begins with short rounds instead; a model that only sleeps
// learns nothing: both have no ramp.
func newRamp(c *Config, share bool) *ramp.Ramp {
	rule := ramp.Rule{Every: cmp.Or(c.rampEvery, ramp.BatchesPerStep), Steps: c.Mode == Sync,
		Together: c.Mode != Async || share}
	if c.Mode == Geo || c.Model.Sleep > 0 {
		rule.Every = 0
	}
	if c.InFlight == nil {
		rule.Most, rule.Each = mostUnderWay, fewInFlight+notPushed
	}
	return ramp.New(c.rank(), c.Trainers, rule)
}

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
	ramp     *ramp.Ramp
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
	p.ramp.Reached(int64(pushes[0]))
	return pushes[0], err
}

// staleEvery is how often a trainer measures the staleness of a batch.
const staleEvery = 8

// measured reports whether staleness is measured. A trainer that is alone knows it without a measurement.
func (p *progress) measured() bool { return p != nil && p.measures && !p.ramp.Alone() }

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
	if !f.j.ramp.Begun() {
		if err := f.wait(); err != nil {
			return err
		}
		f.j.ramp.Begin()
	}
	return f.feed.next(w)
}

// wait returns nil when the trainer may begin, and data.ErrNoneYet after some time.
func (f *rampFeed) wait() error {
	if f.j.ramp.Limit(1) > 0 {
		return nil
	}
	pushes, err := f.j.progress.read(f.ctx)
	if err != nil {
		return stopped(f.ctx, err)
	}
	if f.movedAt.IsZero() && f.j.ramp.Limit(1) == 0 {
		f.j.report.Note("this trainer begins after batch %d of the job: the first batches are trained one after the "+
			"other, because they move the rows most", f.j.ramp.FirstBatch())
	}
	if now := time.Now(); pushes != f.pushes || f.movedAt.IsZero() {
		f.pushes, f.movedAt = pushes, now
	}
	if f.j.ramp.Limit(1) > 0 || time.Since(f.movedAt) > f.j.cfg.lease() {
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
