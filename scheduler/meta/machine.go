package meta

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
)

// Machine is the state machine of the scheduler's group.
//
// Goroutines: the apply goroutine of the group calls Apply, Snapshot and Restore. Any goroutine may read. mu is held
// only for the access to the state.
type Machine struct {
	view    *View
	applied atomic.Uint64

	mu    sync.Mutex
	state *state
}

var _ raftstore.StateMachine = (*Machine)(nil)

// Results of commands.
type (
	TableResult struct {
		Schema  rowraft.Schema
		Created bool
	}
)

// New returns an empty state machine that publishes its maps in v.
func New(v *View) *Machine { return &Machine{view: v, state: &state{}} }

// Apply applies one command. It returns the command's result or the error with which it refuses the command. Every
// member refuses the same commands.
func (m *Machine) Apply(index rowraft.Index, entry []byte) any {
	var c rowraftv1.MetaCommand
	r := bytes.NewReader(entry)
	if err := decodeFrame(r, entryMagic, &c); err != nil {
		return &raftstore.FatalError{Err: fmt.Errorf("metadata entry %d: %w", index, err)}
	}
	// Bytes after the command are from a format that this binary does not know. To ignore them would make the members
	// differ.
	if r.Len() > 0 {
		return &raftstore.FatalError{Err: rowraft.Errorf(rowraft.CodeCorrupt,
			"metadata entry %d: %d bytes follow the command", index, r.Len())}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.state.topology.cluster.Version
	result, err := m.state.apply(&c)
	if err != nil {
		if _, fatal := err.(*raftstore.FatalError); fatal {
			return err
		}
		result = err
	}
	// Also for a command that was refused: the index says what was applied, not what changed.
	m.state.index = index
	if m.state.topology.cluster.Version != before {
		next, err := m.state.newMap()
		if err != nil {
			return &raftstore.FatalError{Err: fmt.Errorf("metadata entry %d: %w", index, err)}
		}
		m.view.Set(next)
	}
	// After the state and the view: a reader that sees this index must see what the entry changed.
	m.applied.Store(uint64(index))
	return result
}

// AppliedIndex returns the index of the last entry that reads see.
func (m *Machine) AppliedIndex() rowraft.Index { return rowraft.Index(m.applied.Load()) }

// Snapshot copies the state, which is small (see the limits in state.go).
func (m *Machine) Snapshot() (raftstore.Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, err := m.state.toProto()
	if err != nil {
		return nil, err
	}
	return &snapshot{p}, nil
}

type snapshot struct{ state *rowraftv1.MetaState }

func (s *snapshot) WriteTo(w io.Writer) (int64, error) {
	b, err := encodeFrame(snapshotMagic, RequiredVersion(s.state), s.state)
	if err != nil {
		return 0, err
	}
	n, err := w.Write(b)
	return int64(n), err
}

func (*snapshot) Release() {}

// Restore replaces the state with that of a snapshot.
func (m *Machine) Restore(r io.Reader) error {
	var p rowraftv1.MetaState
	if err := decodeFrame(r, snapshotMagic, &p); err != nil {
		return err
	}
	next, err := stateFromProto(&p)
	if err != nil {
		return rowraft.Errorf(rowraft.CodeCorrupt, "metadata snapshot: %w", err)
	}
	newest, err := next.newMap()
	if err != nil {
		return rowraft.Errorf(rowraft.CodeCorrupt, "metadata snapshot: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state = next
	m.applied.Store(uint64(next.index))
	m.view.Set(newest)
	return nil
}

// JobStatuses returns all jobs, by name.
func (m *Machine) JobStatuses() (out []*rowraftv1.JobStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.state.registry.runs {
		st := &rowraftv1.JobStatus{Job: r.GetJob(), Workers: r.GetWorkers(), Members: make([]string, r.GetWorkers())}
		for _, w := range r.GetMembers() {
			st.Members[w.GetRank()] = w.GetWorker()
		}
		out = append(out, st)
	}
	return out
}

// Moves returns the running moves and the last finished ones.
func (m *Machine) Moves() (running, finished []Move) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.state.topology.moves), slices.Clone(m.state.topology.finished)
}

// Runs returns the runs, ordered by job. The caller must not change them.
func (m *Machine) Runs() []*rowraftv1.MetaRun {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.state.registry.runs)
}

// EndedRuns returns the runs that the shards must still forget.
func (m *Machine) EndedRuns() [][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.registry.endedRuns
}

// RunOf returns the run of a job, nil if there is none.
func (m *Machine) RunOf(job string) *rowraftv1.MetaRun {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.registry.run(job)
}

// MemberOf returns the run and the entry of a member. It returns nil if the caller is no longer a member.
func (m *Machine) MemberOf(id *rowraftv1.JobIdentity) (*rowraftv1.MetaRun, *rowraftv1.RunMember) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.state.registry.run(id.GetJob())
	if !bytes.Equal(r.GetRun(), id.GetRun()) {
		return nil, nil
	}
	i, found := FindMember(r, id.GetRank())
	if !found || r.GetMembers()[i].GetIncarnation() != id.GetIncarnation() {
		return nil, nil
	}
	return r, r.GetMembers()[i]
}

// CheckMember returns an error if the worker is not, or no longer, a member of its run.
func (m *Machine) CheckMember(id *rowraftv1.JobIdentity) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, _, err := m.state.registry.member(id)
	return err
}
