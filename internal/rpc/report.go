package rpc

import (
	"sync"
	"time"
)

const reportEvery = 200 * time.Millisecond

// Report calls send every reportEvery with the progress of a long operation, until the caller calls stop or
// send fails. When send fails the client has disconnected, and its context ends the operation. No send runs after stop
// has returned.
func Report(send func() error) (stop func()) {
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
