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

	// Every item is free, in read, in ready, or with one goroutine. So when all are free, every batch that was
	// read is trained, and its push has ended.
	items supply[*work] // the goroutine that reads takes them
	read  chan *work    // to the goroutine that pulls; nil if there is none
	ready chan *work    // pulled, for the model

	// A batch has a permit from its pull to the end of its push. The goroutine that pulls takes it.
	permits supply[struct{}]
}

// supply has as many elements as limit allows. One goroutine takes them; any goroutine may send one back to free.
type supply[T any] struct {
	free   chan T
	number int        // how many elements exist, in use or free; the goroutine that takes owns this field
	limit  func() int // at least 1; at most the capacity of free
	make   func() T
}

// take waits for a free element, or makes one. ok is false if ctx ends before.
func (s *supply[T]) take(ctx context.Context) (element T, ok bool) {
	for {
		for limit := s.limit(); s.number < limit; s.number++ {
			s.free <- s.make()
		}
		select {
		case element = <-s.free:
			if s.number <= s.limit() {
				return element, true
			}
			s.number-- // trainers have joined, and share the batches under way
		case <-ctx.Done():
			return element, false
		}
	}
}

// notPushed is how many batches may be under way whose push has not begun: one in the model, one that is pulled.
const notPushed = 2

func newPipeline(j *Job, pushes context.Context, src feed) *pipeline {
	most, readAhead := inFlight(&j.cfg)+notPushed, 0
	p := &pipeline{j: j, pushes: pushes, src: src, ready: make(chan *work)}
	if j.cfg.Mode == Async {
		p.read, readAhead = make(chan *work), 1
	}
	// limit returns how many batches may be under way now.
	limit := func() int { return max(j.ramp.Limit(most), 1) }
	p.permits = supply[struct{}]{free: make(chan struct{}, most), limit: limit,
		make: func() struct{} { return struct{}{} }}
	p.items = supply[*work]{free: make(chan *work, most+readAhead), limit: func() int { return limit() + readAhead },
		make: j.newWork}
	return p
}

// done frees the item and the permit of a batch.
func (p *pipeline) done(w *work) {
	p.permits.free <- struct{}{}
	p.items.free <- w
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
		w, ok := p.items.take(ctx)
		if !ok {
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
			p.items.free <- w
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
	if _, ok := p.permits.take(ctx); !ok {
		return ctx.Err()
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
	for range p.items.number - 1 {
		select {
		case w := <-p.items.free:
			idle = append(idle, w)
		case <-ctx.Done():
			return nil // the loop ends
		}
	}
	err := f()
	for _, w := range idle {
		p.items.free <- w
	}
	return err
}
