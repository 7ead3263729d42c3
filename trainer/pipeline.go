package trainer

import (
	"context"
	"errors"
	"io"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/member"
)

// pipeline reads and pulls the next batch while the model runs, and pushes concurrently. One goroutine reads
// and pulls, one computes, and each unacknowledged push has one.
type pipeline struct {
	j      *Job
	pushes context.Context // of the pushes
	src    feed

	// Every item is in free, in ready, or with one goroutine. So when all are in free, every batch that was
	// read is trained, and its push has ended.
	free  chan *work
	items int        // owned by the goroutine that reads
	ready chan *work // pulled, for the model
}

func newPipeline(j *Job, pushes context.Context, src feed) *pipeline {
	items := j.cfg.InFlight + 2 // one in the model, one that is pulled, one for each unacknowledged push
	p := &pipeline{j: j, pushes: pushes, src: src, free: make(chan *work, items), ready: make(chan *work)}
	p.grow()
	return p
}

// limit returns how many items there should be: as many as batches may be under way, but at least one.
func (p *pipeline) limit() int { return max(p.j.ramp.Limit(cap(p.free)), 1) }

// grow makes items up to the limit.
func (p *pipeline) grow() {
	for want := p.limit(); p.items < want; p.items++ {
		p.free <- p.j.newWork()
	}
}

// run trains until the batches end.
func (p *pipeline) run(ctx context.Context) error {
	j := p.j
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait() }()
	var readErr error // set before ready is closed
	all.Go(func() {
		defer close(p.ready)
		readErr = p.read(ctx)
	})
	unacknowledged := semaphore.NewWeighted(int64(j.cfg.InFlight))
	for w := range p.ready {
		push, err := j.compute(ctx, w)
		if err != nil {
			return err
		}
		if !push {
			if err := j.batchDone(w.Place); err != nil {
				return err
			}
			p.free <- w
			continue
		}
		// This waits until fewer than InFlight pushes are under way. Every push ends in time.
		_ = unacknowledged.Acquire(context.Background(), 1)
		if err := j.report.Failed(); err != nil {
			return err
		}
		all.Go(func() {
			_ = j.push(p.pushes, w) // the job stores the error
			p.free <- w
			unacknowledged.Release(1)
		})
	}
	_ = unacknowledged.Acquire(context.Background(), int64(j.cfg.InFlight)) // all pushes have ended
	if err := j.report.Failed(); err != nil {
		return err
	}
	if readErr == io.EOF {
		return nil
	}
	return readErr
}

// read reads and pulls batches until they end.
func (p *pipeline) read(ctx context.Context) error {
	j := p.j
	for {
		p.grow()
		var w *work
		select {
		case w = <-p.free:
		case <-ctx.Done():
			return nil
		}
		if p.items > p.limit() { // trainers have joined, and share the batches under way
			p.items--
			continue
		}
		stop := func(at *member.Pause) error {
			return p.drained(ctx, func() error { return j.boundary(ctx, p.pushes, at) })
		}
		j.validation.Hold(ctx)
		if ok, err := j.pausePoint.Begin(ctx, stop); !ok {
			return err // nil: ctx has ended, and the state stays in the items
		}
		switch err := j.read(p.src, w); {
		case errors.Is(err, data.ErrNoneYet):
			p.free <- w
			if err := j.mode.Idle(p.pushes); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		if err := j.pull(ctx, w, stop); err != nil {
			return stopped(ctx, err)
		}
		select {
		case p.ready <- w:
		case <-ctx.Done():
			return nil
		}
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
