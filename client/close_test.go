package client

import (
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/route"
)

// Pushes begin while Close waits for the pushes in progress.
func TestCloseBesidePush(t *testing.T) {
	var s fakeServer
	s.serve(t, 1)
	for range 50 {
		c, table := s.dial(t, func(o *Options) { o.ConnsPerNode = 1 })
		var pushing, begun sync.WaitGroup
		begun.Add(4)
		for range 4 {
			pushing.Go(func() {
				for i := 0; ; i++ {
					_, err := table.Push(patience(t), []rowraft.Key{1}, []float32{1, 1})
					if i == 0 {
						begun.Done()
					}
					if err != nil {
						if code := rowraft.CodeOf(err); code != rowraft.CodeClosing && code != rowraft.CodeUnknown {
							t.Errorf("push concurrent with Close: %v", err)
						}
						return
					}
				}
			})
		}
		begun.Wait()
		c.Close()
		pushing.Wait()
	}
}

// Every call on a closed client ends at once, even if its context has no deadline.
func TestCallsOnAClosedClientEnd(t *testing.T) {
	var s fakeServer
	s.serve(t, 1)
	c, table := s.dial(t, nil)
	if _, err := table.Push(patience(t), []rowraft.Key{1}, []float32{1, 1}); err != nil {
		t.Fatal(err)
	}
	unused, other := s.dial(t, nil) // has opened no session
	c.Close()
	unused.Close()
	ctx := patience(t)
	for _, tc := range []struct {
		name string
		call func() error
	}{
		{"Pull", func() error { return table.Pull(ctx, []rowraft.Key{1}, make([]float32, 2)) }},
		{"Push", func() error { _, err := table.Push(ctx, []rowraft.Key{1}, make([]float32, 2)); return err }},
		{"Push without a session", func() error {
			_, err := other.Push(ctx, []rowraft.Key{1}, make([]float32, 2))
			return err
		}},
		{"CreateTable", func() error { _, err := c.CreateTable(ctx, table.Schema(), true); return err }},
		{"Table", func() error { _, err := c.Table(ctx, "unknown"); return err }},
	} {
		if err := tc.call(); rowraft.CodeOf(err) != rowraft.CodeClosing {
			t.Errorf("%s on a closed client: %v, want CodeClosing", tc.name, err)
		}
	}
	if err := c.Flush(ctx); err != nil {
		t.Errorf("Flush of a closed client whose pushes were all answered: %v", err)
	}
}

// A shard may ask a client to retry after a minute: Close must not wait for that.
func TestCloseEndsAPause(t *testing.T) {
	var s fakeServer
	s.serve(t, 1)
	c, _ := s.dial(t, nil)
	done := make(chan error, 1)
	ctx := patience(t)
	go func() { done <- c.pause(ctx, new(route.Backoff), time.Hour) }()
	c.Close()
	if err := <-done; err != errClosed {
		t.Errorf("a pause of an hour on a closed client ended with %v", err)
	}
}
