package replica

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestHowFarAPartIs: the progress is sent until the writer ends, also after the receiver has left.
func TestHowFarAPartIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, done, broke := &counter{}, make(chan error, 1), errors.New("the writer broke")
		go func() {
			for range 10 {
				time.Sleep(time.Second) //tidy:allow sleep virtual time
				c.n.Add(1)
			}
			time.Sleep(time.Second) //tidy:allow sleep virtual time
			done <- broke
		}()
		var sent []int64
		err := report(c, done, func(n int64) error {
			sent = append(sent, n)
			return nil
		})
		if !errors.Is(err, broke) || !slices.IsSorted(sent) || sent[len(sent)-1] != 10 {
			t.Errorf("%v, told of %v bytes", err, slices.Compact(sent))
		}
	})
	synctest.Test(t, func(t *testing.T) { // the receiver has left: report still waits for the writer
		c, done, gone := &counter{}, make(chan error, 1), errors.New("the receiver has left")
		time.AfterFunc(time.Minute, func() { done <- nil })
		begun := time.Now()
		err := report(c, done, func(int64) error { return gone })
		if took := time.Since(begun); !errors.Is(err, gone) || took < time.Minute {
			t.Errorf("%v after %v, want what sending failed with, when the writer has ended", err, took)
		}
	})
}
