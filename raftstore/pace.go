package raftstore

import (
	"io"
	"time"

	"golang.org/x/time/rate"
)

// paceBytes bounds one read of a pacedReader, and so what all of them together may send at once.
const paceBytes = 64 << 10

// pacedReader reads no faster than limit lets all readers of the node together, so that
// snapshots leave the disk and the network to pushes. limit has a burst of paceBytes.
type pacedReader struct {
	r     io.Reader
	limit *rate.Limiter
	stop  <-chan struct{} // ends the waits
}

func (r *pacedReader) Read(b []byte) (int, error) {
	n, err := r.r.Read(b[:min(len(b), paceBytes)])
	if wait := r.limit.ReserveN(time.Now(), n).Delay(); wait > time.Millisecond { // a timer's error
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-r.stop:
		}
	}
	return n, err
}
