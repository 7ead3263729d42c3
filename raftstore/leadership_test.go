package raftstore

import (
	"testing"
	"time"

	"github.com/rowraft/rowraft"
)

// A replica that leads in term 5, loses the leadership and leads in term 6 may have term 6 when the first change is
// recorded. OnLeader may then find that it does not lead, so it must be called for the second change, with equal
// arguments.
func TestOnLeaderIsCalledAgainInTheSameTerm(t *testing.T) {
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
