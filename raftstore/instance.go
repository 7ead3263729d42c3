package raftstore

import (
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/fifo"
	"github.com/rowraft/rowraft/raftstore/peer"
	"github.com/rowraft/rowraft/raftstore/timers"
	"github.com/rowraft/rowraft/raftstore/transport"
)

// maxPendingEntries bounds the proposals of a group, in addition to MaxPendingBytes.
const maxPendingEntries = 1024

// maxInflightEntries bounds the proposals that the dispatcher has passed to raft and that wait for their results: two
// of raft's writes have so many.
const maxInflightEntries = 2 * sentEntries

// instance is one run of raft for a group, from NewRaft to Shutdown.
//
// Proposals pass through two goroutines. The dispatcher passes them to raft in the order of Propose. It blocks while
// raft's main goroutine writes its log, so the next write contains all proposals that arrived in between. The completer
// waits for their results, in the same order.
type instance struct {
	g     *Group
	raft  *raft.Raft
	lease time.Duration // that raft was started with
	// started is the heartbeat whose lease raft has. heartbeat is the one that raft uses now (a time.Duration).
	started   time.Duration
	heartbeat atomic.Int64
	// reload is held while raft's configuration is read, changed and set: snapshots change the trailing logs, and the
	// supervisor changes the timers.
	reload sync.Mutex
	layer  *peer.Layer
	trans  *transport.Transport
	marks  atomic.Pointer[knownMarks]
	notify chan bool     // raft's leadership; buffered, because raft's main goroutine blocks on it
	over   chan struct{} // closed when raft has ended, or gives up: unresolved outcomes stay unknown
	ended  chan struct{} // closed when raft has ended, after endErr is set
	endErr error

	succession succession

	more     chan struct{}  // of 1, to the dispatcher, which empties queue before it waits: look at queue and stopping
	inflight chan *Future   // read by the completer; closed by the dispatcher
	drained  chan struct{}  // closed by the completer at its end
	reads    sync.WaitGroup // read rounds, transfers, changes of the members
	watcher  sync.WaitGroup // goroutines that end when over is closed: leadership, snapshots

	// mu is held for short updates only: each proposal takes it twice.
	mu struct {
		sync.Mutex
		stopping        bool                // no goroutine may be added to reads and watcher, and no proposal to queue
		queue           fifo.Queue[*Future] // read by the dispatcher
		pendingBytes    int64               // of the proposals that are not resolved; ≤ MaxPendingBytes
		pending         int                 // their number; ≤ maxPendingEntries
		readers         []chan<- readResult // callers that wait for the next read round
		reading         bool                // a read round is running
		barrierTerm     uint64              // term whose leadership a barrier has confirmed
		transferBusy    time.Time           // since when raft refuses proposals for a transfer; 0: it does not
		transferRefused time.Time           // last such refusal
		transfer        chan struct{}       // closed when TransferLeadership has ended; nil: none is running
		changing        bool                // a change of the members is running
	}
}

func newInstance(g *Group, heartbeat time.Duration) *instance {
	n := &instance{
		g:        g,
		notify:   make(chan bool, 16),
		over:     make(chan struct{}),
		ended:    make(chan struct{}),
		more:     make(chan struct{}, 1),
		inflight: make(chan *Future, maxInflightEntries),
		drained:  make(chan struct{}),
	}
	o := &g.store.opts
	n.succession.n = n
	n.heartbeat.Store(int64(heartbeat))
	n.layer = g.store.port.Layer(g.cfg.ID, &g.rollback)
	to := transport.Options{MaxRPCBytes: o.MaxRPCBytes, MaxEntryBytes: int64(o.MaxEntryBytes), Pace: g.store.pace,
		Shared: g.store.shared, Logger: g.log}
	if wrap := o.hooks.wrapTransport; wrap != nil {
		to.Wrap = func(t raft.Transport) raft.Transport { return wrap(g.cfg.ID, t) }
	}
	n.trans = transport.New(n.layer, to, transport.Replica{
		ID:          raft.ServerID(g.cfg.Replica),
		BacklogFull: func() bool { return g.backlogBytes() > o.MaxBacklogBytes },
		Applied:     g.fsm.applied.Load,
		Boundary:    g.glog.Boundary,
		Term:        n.currentTerm,
		Turns:       &g.turns,
		Expand:      g.expand,
		Timers:      &g.timers.Group, Timeout: max(transport.RPCTimeout, heartbeat),
		Leads:       func(term uint64) bool { return n.currentTerm() == term && n.raft.State() == raft.Leader },
		ServerEnded: n.succession.serverEnded, Supports: n.succession.supports,
		Quiet: func() time.Duration {
			if h := n.heartbeatTimeout(); h <= n.started {
				return h / 4
			}
			return 0 // the lease is still that of the shorter heartbeat: only frequent messages keep it
		},
		Guard: &transport.RollbackGuard{
			MayVote: g.rollback.asked,
			Stopped: func() bool { return g.failure.Load() != nil },
			Voted:   g.rollback.voted, Marks: n.tellMarks, Learn: g.rollback.learn,
		},
	})
	return n
}

// heartbeatTimeout returns the one that raft uses now.
func (n *instance) heartbeatTimeout() time.Duration { return time.Duration(n.heartbeat.Load()) }

// start starts the goroutines of n. n.raft must be set.
func (n *instance) start() {
	go n.dispatch()
	go n.complete()
	n.watcher.Go(n.watchLeadership)
}

// currentTerm returns raft's term, 0 until raft runs.
func (n *instance) currentTerm() uint64 {
	if run := n.g.run.Load(); run == n {
		return n.raft.CurrentTerm()
	}
	return 0
}

func (n *instance) watchLeadership() {
	for {
		select {
		case leader := <-n.notify:
			n.g.leadership.set(rowraft.Term(n.raft.CurrentTerm()), leader)
		case <-n.g.dead:
			n.g.leadership.set(rowraft.Term(n.raft.CurrentTerm()), false)
			n.drainNotify()
			return
		case <-n.over:
			n.g.leadership.set(rowraft.Term(n.raft.CurrentTerm()), false)
			return
		}
	}
}

// drainNotify reads notify until over is closed, so that raft does not block on it.
func (n *instance) drainNotify() {
	for {
		select {
		case <-n.notify:
		case <-n.over:
			return
		}
	}
}

// shutdownLimit bounds the wait for raft's goroutines: one that waits for a hung disk never ends.
const shutdownLimit = 5 * time.Second

// shutdown ends raft. If graceful, it waits for running proposals and reads as long as a leader without followers takes
// to step down, so that nearly all get a result.
func (n *instance) shutdown(graceful bool) error {
	drained := n.refuse()
	if graceful {
		waitFor(drained, 2*n.heartbeatTimeout()+time.Second)
	}
	n.stopRaft()
	err := n.awaitEnd()
	if err == nil {
		waitFor(drained, 100*time.Millisecond) // deliver the last results of raft
	}
	close(n.over)
	n.watcher.Wait()
	return err
}

// giveUp tells raft to end, whose write to the log hangs. It does not wait: the followers elect another leader, and the
// callers get unknown outcomes. The error is errHangs.
func (n *instance) giveUp() error {
	n.refuse()
	n.nominate()
	n.stopRaft()
	close(n.over)
	return errHangs
}

// errHangs is the error of a raft that does not end.
var errHangs = rowraft.Errorf(rowraft.CodeInternal, "raft did not end within %v: its disk hangs", shutdownLimit)

// awaitEnd waits for the end of raft after stopRaft, and returns its error, or errHangs after shutdownLimit.
func (n *instance) awaitEnd() error {
	waitFor(n.ended, shutdownLimit)
	if isClosed(n.ended) {
		return n.endErr
	}
	return errHangs
}

// awaitDisk is awaitEnd for as long as a write to the log may take. over must be closed.
func (n *instance) awaitDisk() error {
	begun := time.Now()
	t := time.NewTimer(timers.FatalStalls * n.g.store.timers.StallLimit())
	defer t.Stop()
	select {
	case <-n.ended:
		n.g.log.Info("raft has ended, which the disk kept waiting", "took", time.Since(begun).Round(time.Millisecond))
		n.watcher.Wait()
	case <-t.C:
	case <-n.g.dead:
	case <-n.g.stop:
	}
	return n.awaitEnd()
}

// refuse refuses the proposals that raft does not have, and later ones. The channel is closed when no call runs.
func (n *instance) refuse() (drained <-chan struct{}) {
	n.mu.Lock()
	n.mu.stopping = true
	n.mu.Unlock()
	n.refuseQueued()
	n.tellDispatcher()
	none := make(chan struct{})
	go func() {
		<-n.drained
		n.reads.Wait()
		close(none)
	}()
	return none
}

// stopRaft tells raft to end, and its peers that it does. ended is closed when it has.
func (n *instance) stopRaft() {
	n.g.snaps.SetStopping(true)
	n.g.fsm.stopping.Store(true)
	done := n.raft.Shutdown()
	n.trans.Interrupt()
	go func() {
		n.endErr = done.Error()
		close(n.ended)
	}()
}

// waitRaft returns the error of a raft future, or raft.ErrRaftShutdown after n.over is closed. When raft stops, it
// forgets the futures in its queues, and a caller would wait for them forever. Futures have a field ShutdownCh for
// that, but raft sets it only in those that it waits for itself; waitRaft sets it.
//
// Only one goroutine may wait for a future, and calls waitRaft once.
func (n *instance) waitRaft(f raft.Future) error {
	if v := reflect.ValueOf(f); v.Kind() == reflect.Pointer {
		if end := v.Elem().FieldByName("ShutdownCh"); end.CanSet() && end.Type() == reflect.TypeOf(n.over) {
			end.Set(reflect.ValueOf(n.over))
		}
	}
	return f.Error()
}

func waitFor(ch <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ch:
	case <-t.C:
	}
}
