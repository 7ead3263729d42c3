package raftstore

import (
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
)

// maxPendingEntries bounds the proposals of a group beside their bytes.
const maxPendingEntries = 4096

// instance is one run of raft for a group: from NewRaft to Shutdown.
//
// Proposals pass through two goroutines. The dispatcher hands them to raft in the
// order of Propose, and blocks while raft's main goroutine writes its log, so
// that the next write takes all that came meanwhile. The completer waits for
// their results, in the same order.
type instance struct {
	g     *Group
	raft  *raft.Raft
	lease time.Duration // that raft was started with
	// started is the heartbeat that the lease belongs to, heartbeat the one that raft has: time.Duration.
	started   time.Duration
	heartbeat atomic.Int64
	reload    sync.Mutex // raft's configuration is read, changed and set
	trans     *transport
	notify    chan bool     // raft's leadership, buffered; watched until over
	over      chan struct{} // closed when raft has ended: what is unresolved stays unknown

	queue    chan *Future // dispatcher's; closed by shutdown
	inflight chan *Future // completer's; closed by the dispatcher
	drained  chan struct{}
	reads    sync.WaitGroup // read rounds
	watcher  sync.WaitGroup // leadership, snapshots: end with raft

	mu struct {
		sync.Mutex
		stopping        bool
		pendingBytes    int64
		pending         int
		readers         []chan<- readAnswer // wait for the next read round
		reading         bool                // a round runs
		barrierTerm     uint64              // leadership of this term was confirmed by a barrier
		transferBusy    time.Time           // since when raft refuses because of a transfer; 0: not
		transferRefused time.Time           // when it last did
		transfer        chan struct{}       // closed when TransferLeadership has ended; nil: none runs
		changing        bool                // a change of the members runs
	}
}

func newInstance(g *Group, heartbeat time.Duration) *instance {
	n := &instance{
		g:        g,
		notify:   make(chan bool, 16),
		over:     make(chan struct{}),
		queue:    make(chan *Future, maxPendingEntries),
		inflight: make(chan *Future, maxPendingEntries),
		drained:  make(chan struct{}),
	}
	o := &g.store.opts
	n.heartbeat.Store(int64(heartbeat))
	n.trans = newTransport(g.store.port.layer(g.cfg.ID, g), o, g.store.pace, g.cfg.ID, g.log, receiver{
		replica:     raft.ServerID(g.cfg.Replica),
		backlogFull: func() bool { return g.backlogBytes() > o.MaxBacklogBytes },
		applied:     g.fsm.applied.Load,
		boundary:    g.glog.boundary.Load,
		term:        n.currentTerm,
		timers:      &g.timers, timeout: max(rpcTimeout, heartbeat),
		leads: func(term uint64) bool { return n.currentTerm() == term && n.raft.State() == raft.Leader },
		recall: &recall{
			asked: g.asked,
			ended: func() bool { return g.failure.Load() != nil },
			voted: g.voted, tell: n.tellMarks, learn: g.learn,
		},
	})
	return n
}

// heartbeatTimeout is the one that raft has.
func (n *instance) heartbeatTimeout() time.Duration { return time.Duration(n.heartbeat.Load()) }

// start runs the goroutines of n. n.raft is set.
func (n *instance) start() {
	go n.dispatch()
	go n.complete()
	n.watcher.Go(n.watchLeadership)
}

// currentTerm is 0 until raft runs.
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

// drainNotify keeps raft from blocking on notify until it has ended.
func (n *instance) drainNotify() {
	for {
		select {
		case <-n.notify:
		case <-n.over:
			return
		}
	}
}

// shutdownLimit bounds the wait for raft's goroutines: one that sits in a hung
// disk never ends.
const shutdownLimit = 5 * time.Second

// shutdown ends raft. If graceful, proposals and reads in flight get the time in
// which a leader without followers notices, so that nearly all are answered.
func (n *instance) shutdown(graceful bool) error {
	n.mu.Lock()
	n.mu.stopping = true
	close(n.queue)
	n.mu.Unlock()

	drained := make(chan struct{})
	go func() {
		<-n.drained
		n.reads.Wait()
		close(drained)
	}()
	if graceful {
		waitFor(drained, 2*n.heartbeatTimeout()+time.Second)
	}
	n.g.snaps.stopping.Store(true)
	n.g.fsm.stopping.Store(true)
	done := n.raft.Shutdown()
	n.trans.interrupt()
	ended := make(chan error, 1)
	go func() { ended <- done.Error() }()
	t := time.NewTimer(shutdownLimit)
	defer t.Stop()
	var err error
	select {
	case err = <-ended:
		waitFor(drained, 100*time.Millisecond) // deliver what raft answered last
	case <-t.C:
		err = rowraft.Errorf(rowraft.CodeInternal, "raft of group %s did not end within %v: its disk hangs", n.g.cfg.ID, shutdownLimit)
	}
	close(n.over)
	n.watcher.Wait()
	return err
}

// await returns the error of a future of raft, or raft.ErrRaftShutdown once n is over:
// when raft stops it forgets what waits in its queues, and its futures would be
// waited for until the process ends. They have a field for that, which raft sets for
// those it waits for itself.
//
// It is called once for a future, by the only goroutine that waits for it.
func (n *instance) await(f raft.Future) error {
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
