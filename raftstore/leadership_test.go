package raftstore

import (
	"testing"
	"time"

	"github.com/rowraft/rowraft"
)

// A replica that leads term 5, loses it, and leads term 6 has a term of 6 when the
// first change is noted. OnLeader then finds that it does not lead, and must be
// told of the second change, though it says the same.
func TestLeadershipIsToldAgainInTheSameTerm(t *testing.T) {
	told := make(chan rowraft.Term)
	g := &Group{stop: make(chan struct{})}
	g.cfg.OnLeader = func(term rowraft.Term, leader bool) {
		if leader {
			told <- term
		}
	}
	g.leadership.init()
	g.wg.Add(1)
	go g.deliverLeadership()
	for range 2 {
		g.leadership.set(6, true)
		select {
		case got := <-told:
			if got != 6 {
				t.Errorf("told of term %d, want 6", got)
			}
		case <-time.After(2 * time.Minute):
			t.Error("not told")
		}
	}
	close(g.stop)
	g.wg.Wait()
}
