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
	items int
	read  chan *work // to the goroutine that pulls; nil if there is none
	ready chan *work // pulled, for the model

	// A batch has a place from its pull to the end of its push. A place is in free places, or of one batch.
	places chan struct{}
	given  int // places that there are; owned by the goroutine that pulls
}

func newPipeline(j *Job, pushes context.Context, src feed) *pipeline {
	places := inFlight(&j.cfg) + 2 // one in the model, one that is pulled, one for each unacknowledged push
	p := &pipeline{j: j, pushes: pushes, src: src, items: places, ready: make(chan *work),
		places: make(chan struct{}, places)}
	if j.cfg.Mode == Async {
		p.read = make(chan *work)
		p.items++
	}
	p.free = make(chan *work, p.items)
	for range p.items {
		p.free <- j.newWork()
	}
	return p
}

// takePlace waits until one more batch may be under way.
func (p *pipeline) takePlace(ctx context.Context) error {
	for {
		limit := max(p.j.ramp.Limit(cap(p.places)), 1)
		for ; p.given < limit; p.given++ {
			p.places <- struct{}{}
		}
		select {
		case <-p.places:
		case <-ctx.Done():
			return ctx.Err()
		}
		if p.given <= limit {
			return nil
		}
		p.given-- // trainers have joined, and share the batches under way
	}
}

// done frees the item and the place of a batch.
func (p *pipeline) done(w *work) {
	p.places <- struct{}{}
	p.free <- w
}

// run trains until the batches end.
func (p *pipeline) run(ctx context.Context) error {
	j := p.j
	ctx, cancel := context.WithCancel(ctx)
	var pushes sync.WaitGroup
	input, inputCtx := errgroup.WithContext(ctx)
	defer func() { cancel(); pushes.Wait(); _ = input.Wait() }() // run has its error, or another one
	input.Go(func() error { return p.readAll(inputCtx) })
	if p.read != nil {
		input.Go(func() error { return p.pullAll(inputCtx) })
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
		// This waits until fewer than InFlight pushes are under way. Every push ends in time.
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
	_ = unacknowledged.Acquire(context.Background(), int64(inFlight(&j.cfg))) // all pushes have ended
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
		var w *work
		select {
		case w = <-p.free:
		case <-ctx.Done():
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
	if err := p.takePlace(ctx); err != nil {
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
