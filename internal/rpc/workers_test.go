package rpc

import (
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// No function waits for another one, a goroutine that has ended its function takes the next one, and an idle one ends:
// otherwise the bubble would not end.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, began := NewWorkers(), time.Now()
		goroutine := func() string {
			text := make([]byte, 64)
			name, _, _ := strings.Cut(string(text[:runtime.Stack(text, false)]), " [")
			return name
		}
		first, second, release := "", "", make(chan struct{})
		w.Run(func() { first = goroutine(); <-release })
		w.Run(func() { second = goroutine(); <-release })
		synctest.Wait()
		if first == "" || second == "" || first == second || time.Since(began) > 0 {
			t.Fatalf("%q and %q after %v: want two goroutines at once", first, second, time.Since(began))
		}
		release <- struct{}{}
		release <- struct{}{}
		for _, idle := range []time.Duration{0, workerIdle / 2, 2 * workerIdle} {
			time.Sleep(idle)
			synctest.Wait()
			third := ""
			w.Run(func() { third = goroutine() })
			synctest.Wait()
			if reused := third == first || third == second; reused != (idle < workerIdle) {
				t.Errorf("after %v: %q, before that %q and %q", idle, third, first, second)
			}
		}
		w.Close()
		w.Run(func() {}) // may come late
	})
}
