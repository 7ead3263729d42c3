//go:build cgo

package main

import (
	"context"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
)

// registry has what C knows by a number. Numbers are not used again.
type registry[T any] struct {
	last atomic.Uint64
	all  sync.Map // uint64 → T
}

func (r *registry[T]) add(v T) uint64 {
	id := r.last.Add(1)
	r.all.Store(id, v)
	return id
}

func (r *registry[T]) get(id uint64) (v T, ok bool) {
	a, ok := r.all.Load(id)
	if ok {
		v = a.(T)
	}
	return v, ok
}

// remove returns what had the number; ok is true for one caller only.
func (r *registry[T]) remove(id uint64) (v T, ok bool) {
	a, ok := r.all.LoadAndDelete(id)
	if ok {
		v = a.(T)
	}
	return v, ok
}

func (r *registry[T]) len() (n int) {
	r.all.Range(func(any, any) bool { n++; return true })
	return n
}

var (
	operations registry[*operation]
	sessions   registry[*session]
	clusters   registry[*cluster]
)

// result is what an operation ends with.
type result struct {
	text []byte // of a call; of an error, once it is reported
	rows int    // of a scan
	err  error
}

// operation is one call of C.
type operation struct {
	id     uint64
	cancel context.CancelFunc
	ended  chan struct{} // closed when result is set
	result result
}

// start runs f on a goroutine of its own. A timeout below 0 is none. f gets a nil session for client 0.
func start(clientID uint64, timeout time.Duration, f func(context.Context, *session) (result, error)) *operation {
	o := &operation{ended: make(chan struct{})}
	ctx := context.Background()
	if timeout < 0 {
		ctx, o.cancel = context.WithCancel(ctx)
	} else {
		ctx, o.cancel = context.WithTimeout(ctx, timeout)
	}
	o.id = operations.add(o)
	var s *session
	if clientID != 0 {
		var ok bool
		if s, ok = sessions.get(clientID); ok {
			ok = s.enter()
		}
		if !ok {
			o.result.err = rowraft.Errorf(rowraft.CodeClosing, "the client is closed")
			o.cancel()
			close(o.ended)
			return o
		}
	}
	go func() {
		defer close(o.ended)
		defer o.cancel()
		if s != nil {
			defer s.running.Done()
		}
		o.result = protect(func() (result, error) { return f(ctx, s) })
	}()
	return o
}

// protect turns a panic of f into an error.
func protect(f func() (result, error)) (r result) {
	defer func() {
		if p := recover(); p != nil {
			r = result{err: rowraft.Errorf(rowraft.CodeInternal, "panic: %v\n%s", p, debug.Stack())}
		}
	}()
	r, err := f()
	if r.err = err; err != nil {
		r.text = nil
	}
	return r
}

// wait waits for the end of the operation and returns whether it has ended. A patience below 0 has no bound.
func (o *operation) wait(patience time.Duration) bool {
	switch {
	case patience < 0:
		<-o.ended
		return true
	case patience == 0:
		select {
		case <-o.ended:
			return true
		default:
			return false
		}
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-o.ended:
		return true
	case <-late.C:
		return false
	}
}
