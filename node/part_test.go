package node

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
)

// TestADestinationThatTakesNothingIsGivenUp, however slow one may be that takes
// something.
func TestADestinationThatTakesNothingIsGivenUp(t *testing.T) {
	const patience = time.Minute
	stalled := func() error { return rowraft.Errorf(rowraft.CodeDeadline, "stalled") }
	synctest.Test(t, func(t *testing.T) {
		c, done := &counter{}, make(chan error, 1)
		begin := time.Now()
		go func() {
			for range 10 {
				time.Sleep(patience - time.Second) //tidy:allow sleep virtual time
				c.n.Add(1)
			}
		}()
		var sent []int64
		err := report(c, done, patience, stalled, func(n int64) error {
			sent = append(sent, n)
			return nil
		})
		if took := time.Since(begin); rowraft.CodeOf(err) != rowraft.CodeDeadline || took < 10*patience || took > 11*patience {
			t.Errorf("given up after %v: %v; want after a minute in which nothing was taken", took, err)
		}
		if !slices.IsSorted(sent) || sent[len(sent)-1] != 10 {
			t.Errorf("told of %v bytes", slices.Compact(sent))
		}
	})
	synctest.Test(t, func(t *testing.T) { // nobody listens: the end of the writer counts
		c, done, gone := &counter{}, make(chan error, 1), errors.New("nobody listens")
		time.AfterFunc(patience/2, func() { done <- nil })
		err := report(c, done, patience, stalled, func(int64) error { return gone })
		if !errors.Is(err, gone) {
			t.Errorf("got %v, want what sending failed with", err)
		}
	})
}
