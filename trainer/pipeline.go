package trainer

import (
	"context"
	"errors"
	"io"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/member"
)

// pipeline reads and pulls the next batches while the model runs, and pushes concurrently. One goroutine reads, one
// pulls, one computes, and each unacknowledged push has one. In modes in which a pull may wait for other trainers, the
// goroutine that reads also pulls, because the run may have to pause there.
type pipeline struct {
	j      *Job
	pushes context.Context // of the pushes
	src    feed

	// Every item is in free, in read, in ready, or with one goroutine. So when all are in free, every batch that was
	// read is trained, and its push has ended.
	free  chan *work
	items int        // owned by the goroutine that reads
	read  chan *work // to the goroutine that pulls; nil if there is none
	ready chan *work // pulled, for the model

	// A batch has a permit from its pull to the end of its push.
	permits chan struct{} // those that no batch has
	given   int           // permits that there are; owned by the goroutine that pulls
}

// notPushed is how many batches may be under way whose push has not begun: one in the model, one that is pulled.
const notPushed = 2

func newPipeline(j *Job, pushes context.Context, src feed) *pipeline {
	most := inFlight(&j.cfg) + notPushed
	p := &pipeline{j: j, pushes: pushes, src: src, ready: make(chan *work), permits: make(chan struct{}, most)}
	if j.cfg.Mode == Async {
		p.read = make(chan *work)
	}
	p.free = make(chan *work, p.mostItems(most))
	return p
}

// limit returns how many batches may be under way: as the ramp allows, but at least one.
func (p *pipeline) limit() int { return max(p.j.ramp.Limit(cap(p.permits)), 1) }

// mostItems returns how many items there may be if limit batches may be under way: one more if a batch is read
// meanwhile.
func (p *pipeline) mostItems(limit int) int {
	if p.read != nil {
		return limit + 1
	}
	return limit
}

// takeItem waits for a free item, or makes one. It returns nil if ctx ends before.
func (p *pipeline) takeItem(ctx context.Context) *work {
	for {
		for most := p.mostItems(p.limit()); p.items < most; p.items++ {
			p.free <- p.j.newWork()
		}
		select {
		case w := <-p.free:
			if p.items <= p.mostItems(p.limit()) {
				return w
			}
			p.items-- // trainers have joined, and share the batches under way
		case <-ctx.Done():
			return nil
		}
	}
}

// takePermit waits until one more batch may be under way.
func (p *pipeline) takePermit(ctx context.Context) error {
	for {
		for limit := p.limit(); p.given < limit; p.given++ {
			p.permits <- struct{}{}
		}
		select {
		case <-p.permits:
			if p.given <= p.limit() {
				return nil
			}
			p.given-- // as in takeItem
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// done frees the item and the permit of a batch.
func (p *pipeline) done(w *work) {
	p.permits <- struct{}{}
	p.free <- w
}

// run trains until the batches end.
func (p *pipeline) run(ctx context.Context) error {
	j := p.j
	ctx, cancel := context.WithCancel(ctx)
	var pushes sync.WaitGroup
	var input errgroup.Group
	defer func() {
		cancel()
		pushes.Wait()
		_ = input.Wait() // run returns this error itself, or an earlier one
	}()
	reading, endReading := context.WithCancel(ctx)
	defer endReading()
	input.Go(func() error { return p.readAll(reading) })
	if p.read != nil {
		input.Go(func() error { // what was read before an error of readAll is still trained
			defer endReading()
			return p.pullAll(ctx)
		})
	}
	unacknowledged := semaphore.NewWeighted(int64(inFlight(&j.cfg)))
	for w := range p.ready {
		push, err := j.compute(ctx, w)
		if err != nil {
			return err
		}
		if !push {
			if err := j.batchDone(w.Place); err != nil {
				return err
			}
			p.done(w)
			continue
		}
		// This waits until fewer than inFlight pushes are under way. Every push ends in time.
		_ = unacknowledged.Acquire(context.Background(), 1)
		if err := j.report.Failed(); err != nil {
			return err
		}
		pushes.Go(func() {
			_ = j.push(p.pushes, w) // the job stores the error
			p.done(w)
			unacknowledged.Release(1)
		})
	}
	pushes.Wait()
	if err := j.report.Failed(); err != nil {
		return err
	}
	return input.Wait()
}

// readAll reads batches until they end, and has them pulled.
func (p *pipeline) readAll(ctx context.Context) error {
	j := p.j
	if p.read != nil {
		defer close(p.read)
	} else {
		defer close(p.ready)
	}
	for {
		w := p.takeItem(ctx)
		if w == nil {
			return nil
		}
		stop := func(at *member.Pause) error {
			return p.drained(ctx, func() error { return j.boundary(ctx, p.pushes, at) })
		}
		j.validation.Hold(ctx)
		if ok, err := j.pausePoint.Begin(ctx, stop); !ok {
			return err // nil: ctx has ended, and the state stays in the items
		}
		switch err := j.read(p.src, w); {
		case err == io.EOF:
			return nil
		case errors.Is(err, data.ErrNoneYet):
			p.free <- w
			if err := j.mode.Idle(p.pushes); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		if p.read == nil {
			if err := p.pull(ctx, w, stop); err != nil {
				return stopped(ctx, err)
			}
			continue
		}
		select {
		case p.read <- w:
		case <-ctx.Done():
			return nil
		}
	}
}

// pullAll pulls what readAll has read.
func (p *pipeline) pullAll(ctx context.Context) error {
	defer close(p.ready)
	for w := range p.read {
		if err := p.pull(ctx, w, nil); err != nil { // a pull of mode async waits for no other trainer, and stops nowhere
			return stopped(ctx, err)
		}
	}
	return nil
}

// pull pulls w and gives it to the model. stop is that of [Job.pull].
func (p *pipeline) pull(ctx context.Context, w *work, stop func(*member.Pause) error) error {
	if err := p.takePermit(ctx); err != nil {
		return err
	}
	if err := p.j.pull(ctx, w, stop); err != nil {
		return err
	}
	select {
	case p.ready <- w:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drained calls f when every item but the caller's is free: every read batch is trained, and its push has ended. It
// returns without calling f if ctx ends before.
func (p *pipeline) drained(ctx context.Context, f func() error) error {
	var idle []*work
	for range p.items - 1 {
		select {
		case w := <-p.free:
			idle = append(idle, w)
		case <-ctx.Done():
			return nil // the loop ends
		}
	}
	err := f()
	for _, w := range idle {
		p.free <- w
	}
	return err
}
