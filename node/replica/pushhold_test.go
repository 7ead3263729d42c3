package replica

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
)

func TestAClosedGateLetsPushesEndAndNoneIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g pushHold
		if err := g.enter(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
		var h *hold
		closed, entered := false, false
		go func() {
			var err error
			if h, err = g.begin(t.Context(), time.Second); err != nil {
				t.Error(err)
			}
			closed = true
		}()
		synctest.Wait()
		if closed {
			t.Fatal("the hold began before the push that was in had its result")
		}
		go func() {
			if err := g.enter(t.Context(), 10); err != nil {
				t.Error(err)
			}
			entered = true
		}()
		synctest.Wait()
		g.exit()
		synctest.Wait()
		if !closed || entered {
			t.Fatalf("closed %v, entered %v; want a hold and no push in", closed, entered)
		}
		if _, err := g.begin(t.Context(), time.Second); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
			t.Errorf("closed twice: %v", err)
		}
		ran := false
		if !h.through(func() { ran = true }) || !ran {
			t.Error("a hold refused a push")
		}
		time.Sleep(200 * time.Millisecond) //tidy:allow sleep virtual time
		if d := h.release(); d != 200*time.Millisecond || h.release() != d {
			t.Errorf("held for %v, want 200ms", d)
		}
		synctest.Wait()
		if !entered {
			t.Error("the hold is over, and the push still waits")
		}
		g.exit()
	})
}

func TestALeaseOpensTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g pushHold
		h, err := g.begin(t.Context(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := g.enter(t.Context(), 1); err != nil || time.Since(start) != time.Second {
			t.Errorf("entered after %v, %v; want 1s", time.Since(start), err)
		}
		if h.through(func() { t.Error("ran") }) {
			t.Error("the hold was over for a moment, and a mark would still be logged")
		}
		// The push in progress does not end: a second cut gives up at the end of its lease.
		if _, err := g.begin(t.Context(), time.Second); rowraft.CodeOf(err) != rowraft.CodeDeadline {
			t.Errorf("close: %v, want Deadline", err)
		}
		if err := g.enter(t.Context(), 1); err != nil {
			t.Errorf("the hold stays: %v", err)
		}
	})
}

func TestAPushThatLeavesOrIsTooMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g pushHold
		h, err := g.begin(t.Context(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.enter(ctx, maxHeldBytes); rowraft.CodeOf(err) != rowraft.CodeClosing {
			t.Errorf("enter: %v, want Closing: it was never proposed", err)
		}
		go func() { _ = g.enter(t.Context(), maxHeldBytes) }()
		synctest.Wait()
		if err := g.enter(t.Context(), 1); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
			t.Errorf("enter: %v, want Overloaded", err)
		}
		h.release()
		ended, end := context.WithCancel(t.Context())
		end()
		synctest.Wait()
		if _, err := g.begin(ended, time.Minute); rowraft.CodeOf(err) != rowraft.CodeDeadline {
			t.Errorf("close: %v, want Deadline", err)
		}
		if err := g.enter(t.Context(), 1); err != nil {
			t.Errorf("a hold whose caller left stays: %v", err)
		}
	})
}
