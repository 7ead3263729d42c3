package scheduler

import (
	"sync"
	"time"
)

const reportEvery = 200 * time.Millisecond

// reporting has send tell the caller of a long operation every reportEvery how far it
// is, until stop is called or send fails: then the caller is gone, and its context ends
// the operation. No send runs once stop has returned.
func reporting(send func() error) (stop func()) {
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(reportEvery)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			if send() != nil {
				return
			}
		}
	})
	return func() {
		close(end)
		wg.Wait()
	}
}
