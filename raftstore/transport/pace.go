package transport

import (
	"io"
	"time"

	"golang.org/x/time/rate"
)

// paceBytes bounds one read of a pacedReader, and with it the burst of all readers together.
const paceBytes = 64 << 10

// pacedReader limits the rate of all readers of the node together, because pushes need the same disk and network.
// limit has a burst of paceBytes.
type pacedReader struct {
	r     io.Reader
	limit *rate.Limiter
	stop  <-chan struct{} // ends the waits
}

func (r *pacedReader) Read(b []byte) (int, error) {
	n, err := r.r.Read(b[:min(len(b), paceBytes)])
	// shorter waits are within the inaccuracy of a timer
	if wait := r.limit.ReserveN(time.Now(), n).Delay(); wait > time.Millisecond {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-r.stop:
		}
	}
	return n, err
}
