package raftstore

import (
	"io"
	"sync"
	"time"
)

// pace spreads the bytes of all snapshots that this node sends, so that they leave
// the disk and the network to those who push. Safe for concurrent use.
type pace struct {
	perSecond int64

	mu   sync.Mutex
	free time.Time // when what was let through so far is over
}

// take waits for n bytes, or for stop.
func (p *pace) take(n int, stop <-chan struct{}) {
	p.mu.Lock()
	now := time.Now()
	if p.free.Before(now) {
		p.free = now
	}
	wait := p.free.Sub(now)
	p.free = p.free.Add(time.Duration(float64(n) / float64(p.perSecond) * float64(time.Second)))
	p.mu.Unlock()
	if wait < time.Millisecond { // less than a timer's error
		return
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-stop:
	}
}

// pacedReader reads no faster than pace lets it.
type pacedReader struct {
	r    io.Reader
	pace *pace
	stop <-chan struct{}
}

func (r *pacedReader) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	if n > 0 {
		r.pace.take(n, r.stop)
	}
	return n, err
}
