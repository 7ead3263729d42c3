package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/entry"
	"github.com/rowraft/rowraft/raftstore/logstore"
	"github.com/rowraft/rowraft/raftstore/snapstore"
)

// fsm is the raft.FSM of a group. It passes committed entries with their indices to the machine, keeps the index
// through which the machine has seen the log, and stops the group at the first sign that machine and log disagree.
//
// Raft calls ApplyBatch, Snapshot and Restore on one goroutine. An fsm outlives the raft instances of its group: after
// a restart in place raft replays entries that the machine has already applied, and the fsm ignores them.
type fsm struct {
	machine StateMachine
	ledger  *logstore.Ledger
	fatal   func(error)
	// restored is called with the index and term of a snapshot when the machine holds it.
	restored func(index, term uint64)
	// installed is called when a snapshot of the leader has replaced the state of a running machine, because the
	// leader's log began after the end of this replica's log. May be nil.
	installed func(from, to uint64)
	// yield returns the limiter that slows the writing of a snapshot down. May be nil.
	yield func(s Snapshot, index uint64) *yield

	// applied is the raft index through which the machine has seen the log; it is at least the machine's AppliedIndex.
	// The goroutine of ApplyBatch stores it after the machine has changed. Invariant: it never decreases.
	applied atomic.Uint64
	// passed is the index through which the present raft instance has passed entries, ignored entries included. It is
	// below applied while raft replays. Owned by the goroutine of ApplyBatch.
	passed uint64
	// members is the newest committed configuration with its index; nil before the first one. Raft returns this index
	// nowhere else: GetConfiguration().Index() is always 0.
	members atomic.Pointer[configuration]
	// failed is set before fatal is called. From then on nothing is applied.
	failed atomic.Bool
	// stopping is set before raft is asked to end. While it ends, raft may drop a batch and pass the
	// next one (processLogs, raft 1.7.3). The fsm applies nothing after such a gap.
	stopping atomic.Bool

	// moved is called after applied has changed.
	moved func()
	clock *stageClock // nil: stages are not counted
}

var _ raft.BatchingFSM = (*fsm)(nil)

// configuration is the list of members that a log entry set, with the index of the entry.
type configuration struct {
	index   uint64
	servers []raft.Server
}

// configured records a committed configuration if it is newer than the known one.
func (f *fsm) configured(index uint64, c raft.Configuration) {
	if old := f.members.Load(); old == nil || old.index < index {
		f.members.Store(&configuration{index, c.Servers})
	}
}

// fsmFailure is the response for entries that were not applied.
type fsmFailure struct{}

func newFSM(m StateMachine, l *logstore.Ledger, fatal func(error), restored func(index, term uint64)) *fsm {
	f := &fsm{machine: m, ledger: l, fatal: fatal, restored: restored, moved: func() {}}
	f.applied.Store(uint64(m.AppliedIndex()))
	return f
}

// restarted resets passed. Call it before a new raft instance passes entries.
func (f *fsm) restarted() { f.passed = 0 }

func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	out := make([]any, len(logs))
	for i, l := range logs {
		out[i] = f.applyOne(l)
	}
	f.moved()
	return out
}

func (f *fsm) applyOne(l *raft.Log) any {
	applied := f.applied.Load()
	f.passed = max(f.passed, l.Index)
	switch {
	case f.failed.Load():
		return fsmFailure{}
	case l.Index <= applied:
		return nil
	case !f.ledger.Advance(applied, l.Index):
		if f.stopping.Load() {
			return fsmFailure{} // raft has dropped the entries before this one
		}
		return f.fail(rowraft.Errorf(rowraft.CodeInternal, "gap in the log: entry %d came after %d", l.Index, applied))
	}
	var out any
	if l.Type == raft.LogCommand {
		if err := entry.Check(l); err != nil {
			return f.fail(err)
		}
		var err error
		f.clock.applying(l.Index)
		if out, err = f.call(l); err != nil {
			return f.fail(fmt.Errorf("apply entry %d: %w", l.Index, err))
		}
		f.clock.applied(l.Index)
	}
	if l.Type == raft.LogConfiguration {
		f.configured(l.Index, raft.DecodeConfiguration(l.Data))
	}
	f.applied.Store(l.Index)
	return out
}

// call applies l and converts a panic to an error.
func (f *fsm) call(l *raft.Log) (out any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = rowraft.Errorf(rowraft.CodeInternal, "the state machine panicked: %v\n%s", p, debug.Stack())
		}
	}()
	out = f.machine.Apply(rowraft.Index(l.Index), l.Data)
	if fe, ok := out.(*FatalError); ok {
		return nil, fe
	}
	return out, nil
}

func (f *fsm) fail(err error) any {
	f.failed.Store(true)
	f.fatal(err)
	return fsmFailure{}
}

func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if f.failed.Load() {
		return nil, errors.New("the state machine failed before")
	}
	// During a replay raft would label the snapshot with passed and cut the log there, but the state is that of
	// applied.
	if applied := f.applied.Load(); f.passed < applied {
		return nil, fmt.Errorf("raft replays entry %d of %d after a restart in place: the state in between cannot be saved",
			f.passed, applied)
	}
	s, err := f.machine.Snapshot()
	if err != nil {
		return nil, err
	}
	out := &fsmSnapshot{snap: s, index: f.machine.AppliedIndex()}
	if f.yield != nil {
		out.yield = f.yield(s, f.applied.Load())
	}
	return out, nil
}

type fsmSnapshot struct {
	sink  raft.SnapshotSink // set by Persist
	snap  Snapshot
	index rowraft.Index
	yield *yield // may be nil
	once  sync.Once
}

func (s *fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	s.sink = sink
	if err := snapstore.WriteStateHeader(sink, s.index); err != nil {
		return err
	}
	var w io.Writer = sink
	if s.yield != nil {
		w = &yieldingWriter{w: sink, yield: s.yield}
	}
	if _, err := s.snap.WriteTo(w); err != nil {
		return err
	}
	if l, ok := s.snap.(LocalSnapshot); ok {
		return snapstore.SetFull(sink, l.FullBytes())
	}
	return nil
}

// Release runs after raft has closed the sink, or has not used the snapshot.
func (s *fsmSnapshot) Release() {
	s.once.Do(func() {
		if l, ok := s.snap.(LocalSnapshot); ok && s.sink != nil {
			if named, durable := snapstore.Outcome(s.sink); named {
				l.Keep(durable)
			}
		}
		s.snap.Release()
	})
}

// expand returns the bytes of a snapshot for a follower, if data refers to files of this replica; otherwise nil.
func (g *Group) expand(data io.Reader) (full io.ReadCloser, size int64, err error) {
	size = snapstore.FullOf(data)
	if size == 0 {
		return nil, 0, nil
	}
	if g.cfg.Expand == nil {
		return nil, 0, rowraft.Errorf(rowraft.CodeInternal,
			"group %s: the snapshot refers to files, and the machine has none", g.cfg.ID)
	}
	index, err := snapstore.ReadStateHeader(data, "to send")
	if err != nil {
		return nil, 0, err
	}
	state, err := g.cfg.Expand(data)
	if err != nil {
		return nil, 0, err
	}
	var head bytes.Buffer
	if err := snapstore.WriteStateHeader(&head, index); err != nil {
		return nil, 0, errors.Join(err, state.Close())
	}
	size += int64(head.Len())
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(&head, state), state}, size, nil
}

// Restore replaces the machine's state with that of a snapshot. It does nothing if the machine has seen the log beyond
// the snapshot, as after a restart in place.
func (f *fsm) Restore(rc io.ReadCloser) error {
	meta, err := snapstore.MetaOf(rc)
	if err != nil {
		return err
	}
	applied := f.applied.Load()
	if applied > 0 && meta.Index <= applied {
		f.configured(meta.ConfigurationIndex, meta.Configuration)
		f.passed = max(f.passed, meta.Index)
		f.restored(meta.Index, meta.Term)
		return nil
	}
	index, err := snapstore.ReadStateHeader(rc, meta.ID)
	if err != nil {
		return err
	}
	if uint64(index) > meta.Index {
		return rowraft.Errorf(rowraft.CodeCorrupt, "snapshot %s holds state of index %d beyond its own %d", meta.ID, index,
			meta.Index)
	}
	if err := f.machine.Restore(rc); err != nil {
		return fmt.Errorf("restore snapshot %s: %w", meta.ID, err)
	}
	if got := f.machine.AppliedIndex(); got != index {
		err := rowraft.Errorf(rowraft.CodeInternal, "snapshot %s was taken at index %d, the machine restored to %d", meta.ID,
			index, got)
		f.fail(err)
		return err
	}
	// A machine that leaves bytes unread did not understand them.
	if n, err := io.Copy(io.Discard, rc); err != nil || n > 0 {
		err = errors.Join(err, rowraft.Errorf(rowraft.CodeCorrupt, "snapshot %s: %d bytes follow the machine's state",
			meta.ID, n))
		f.fail(err)
		return err
	}
	f.configured(meta.ConfigurationIndex, meta.Configuration)
	f.restored(meta.Index, meta.Term) // before applied: then a snapshot of this index is declined
	f.applied.Store(meta.Index)
	f.passed = max(f.passed, meta.Index)
	if applied > 0 && f.installed != nil { // 0: the replica is starting
		f.installed(applied, meta.Index)
	}
	f.moved()
	return nil
}
