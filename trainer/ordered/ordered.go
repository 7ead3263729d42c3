// Package ordered passes items through stages that run concurrently, and returns them in their order.
package ordered

import (
	"context"
	"io"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Stages are the stages of an item. One goroutine calls Read, one Write, and as many as Compute has functions call Pull
// and Compute: each function of Compute has a goroutine of its own.
type Stages[T any] struct {
	Read    func(ctx context.Context, item T) error // fills an item; io.EOF: there are no more
	Pull    func(ctx context.Context, item T) error
	Compute []func(item T) error
	Write   func(item T) error // gets the items in the order in which Read filled them
}

// moving is an item between two stages.
type moving[T any] struct {
	item T
	done chan struct{} // gets a value after Compute
}

// line is one call of Run. An item goes from free through read and pulled to its done, and back to free; all items in
// between are in ordered. Each channel has room for all items, so that no goroutine waits to send.
type line[T any] struct {
	*Stages[T]
	free, read, pulled, ordered chan *moving[T]
}

// Run passes the items around until Read returns io.EOF, a stage returns an error, which Run returns, or ctx ends.
// Their number bounds how far Read is ahead of Write. When Run returns, all of its goroutines have ended.
func (s *Stages[T]) Run(ctx context.Context, items []T) error {
	l := &line[T]{Stages: s}
	for _, c := range []*chan *moving[T]{&l.free, &l.read, &l.pulled, &l.ordered} {
		*c = make(chan *moving[T], len(items))
	}
	for _, item := range items {
		l.free <- &moving[T]{item, make(chan struct{}, 1)}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.reading(ctx) })
	var pulling sync.WaitGroup
	for _, compute := range s.Compute {
		pulling.Add(1)
		g.Go(func() error {
			defer pulling.Done()
			for m := range l.read {
				if err := s.Pull(ctx, m.item); err != nil {
					return err
				}
				l.pulled <- m
			}
			return nil
		})
		g.Go(func() error {
			for m := range l.pulled {
				if err := compute(m.item); err != nil {
					return err
				}
				m.done <- struct{}{}
			}
			return nil
		})
	}
	g.Go(func() error { pulling.Wait(); close(l.pulled); return nil })
	g.Go(func() error { return l.writing(ctx) })
	return g.Wait()
}

func (l *line[T]) reading(ctx context.Context) error {
	defer close(l.read)
	defer close(l.ordered)
	for {
		var m *moving[T]
		select {
		case m = <-l.free:
		case <-ctx.Done():
			return ctx.Err()
		}
		switch err := l.Read(ctx, m.item); {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		l.ordered <- m
		l.read <- m
	}
}

func (l *line[T]) writing(ctx context.Context) error {
	for m := range l.ordered {
		select {
		case <-m.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := l.Write(m.item); err != nil {
			return err
		}
		l.free <- m
	}
	return nil
}
