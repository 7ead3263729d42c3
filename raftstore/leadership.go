package raftstore

import (
	"sync"

	"github.com/rowraft/rowraft"
)

// leadership passes changes from raft, which must never wait, to OnLeader, which may take long. It keeps only the
// newest state. The term is read after the change, so it may belong to a later change. Then OnLeader is called twice
// with that term.
type leadership struct {
	signal chan struct{} // capacity 1

	mu     sync.Mutex // guards the newest state
	term   rowraft.Term
	leader bool
}

func (l *leadership) init() { l.signal = make(chan struct{}, 1) }

func (l *leadership) set(term rowraft.Term, leader bool) {
	l.mu.Lock()
	l.term, l.leader = term, leader
	l.mu.Unlock()
	select {
	case l.signal <- struct{}{}:
	default:
	}
}

func (l *leadership) get() (rowraft.Term, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term, l.leader
}

// deliverLeadership calls OnLeader until the group closes.
func (g *Group) deliverLeadership() {
	defer g.wg.Done()
	var term rowraft.Term
	var leader bool // as last delivered
	deliver := func(t rowraft.Term, is bool) {
		if g.cfg.OnLeader != nil && (is || is != leader) {
			g.cfg.OnLeader(t, is)
		}
		term, leader = t, is
	}
	for {
		select {
		case <-g.leadership.signal:
			deliver(g.leadership.get())
		case <-g.stop:
			deliver(term, false)
			return
		}
	}
}
