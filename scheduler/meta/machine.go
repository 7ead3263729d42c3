package meta

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
)

// Machine is the state machine of the metadata group.
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
	if r.Len() > 0 {
		return &raftstore.FatalError{Err: rowraft.Errorf(rowraft.CodeCorrupt, "metadata entry %d: %d bytes follow the command", index, r.Len())}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.state.cluster.Version
	result, err := m.state.apply(&c)
	if err != nil {
		if _, fatal := err.(*raftstore.FatalError); fatal {
			return err
		}
		result = err
	}
	m.state.index = index
	if m.state.cluster.Version != before {
		next, err := m.state.newMap()
		if err != nil {
			return &raftstore.FatalError{Err: fmt.Errorf("metadata entry %d: %w", index, err)}
		}
		m.view.Set(next)
	}
	m.applied.Store(uint64(index))
	return result
}

// apply runs c and returns its result.
func (s *state) apply(c *rowraftv1.MetaCommand) (any, error) {
	switch c := c.Command.(type) {
	case *rowraftv1.MetaCommand_Init:
		return nil, s.init(rowraft.ClusterID(c.Init.GetClusterId()))
	case *rowraftv1.MetaCommand_PutNode:
		return nil, s.putNode(rpc.NodeFromProto(c.PutNode.GetNode()))
	case *rowraftv1.MetaCommand_CreateShards:
		slots, err := rpc.SlotsFromProto(c.CreateShards.GetSlots())
		if err != nil {
			return nil, err
		}
		return nil, s.createShards(shardsFromProto(c.CreateShards.GetShards()), slots)
	case *rowraftv1.MetaCommand_CreateTable:
		schema, created, err := s.createTable(rpc.SchemaFromProto(c.CreateTable.GetTable()), c.CreateTable.GetIfNotExists())
		return TableResult{schema, created}, err
	case *rowraftv1.MetaCommand_DropTable:
		return nil, s.dropTable(c.DropTable.GetName(), rowraft.TableID(c.DropTable.GetId()))
	case *rowraftv1.MetaCommand_IssueIncarnation:
		if id := c.IssueIncarnation.GetMember(); id != nil {
			// Refuse a worker that was replaced: its next incarnation would fence the current member.
			if _, _, err := s.member(id); err != nil {
				return nil, err
			}
		}
		return s.issueIncarnation(), nil
	case *rowraftv1.MetaCommand_StartMove:
		return s.startMove(c.StartMove)
	case *rowraftv1.MetaCommand_AdvanceMove:
		return s.advanceMove(c.AdvanceMove.GetMoveId(), c.AdvanceMove.GetFrom(), c.AdvanceMove.GetTo())
	case *rowraftv1.MetaCommand_ForgetReplica:
		return nil, s.forgetReplica(rowraft.ShardID(c.ForgetReplica.GetShard()), rowraft.ReplicaID(c.ForgetReplica.GetReplicaId()))
	case *rowraftv1.MetaCommand_BeginRestore:
		return nil, s.beginRestore(c.BeginRestore)
	case *rowraftv1.MetaCommand_Restore:
		return nil, s.decideRestore(c.Restore)
	case *rowraftv1.MetaCommand_EndRestore:
		return nil, s.endRestore(c.EndRestore)
	case *rowraftv1.MetaCommand_Attend:
		return nil, s.attend(c.Attend)
	case *rowraftv1.MetaCommand_Detach:
		return nil, s.detach(c.Detach)
	case *rowraftv1.MetaCommand_SetPolicy:
		return nil, s.setPolicy(c.SetPolicy)
	case *rowraftv1.MetaCommand_DeletePolicy:
		return nil, s.deletePolicy(c.DeletePolicy.GetName())
	case *rowraftv1.MetaCommand_BeginPolicyRun:
		return nil, s.beginPolicyRun(c.BeginPolicyRun)
	case *rowraftv1.MetaCommand_EndPolicyRun:
		return nil, s.endPolicyRun(c.EndPolicyRun)
	case *rowraftv1.MetaCommand_ForgetCheckpoint:
		return nil, s.forgetCheckpoint(c.ForgetCheckpoint)
	case *rowraftv1.MetaCommand_EnterJob:
		return s.enterJob(c.EnterJob)
	case *rowraftv1.MetaCommand_LeaveJob:
		return nil, s.leaveJob(c.LeaveJob)
	case *rowraftv1.MetaCommand_TakePart:
		return s.takePart(c.TakePart)
	case *rowraftv1.MetaCommand_EndPart:
		return nil, s.endPart(c.EndPart)
	case *rowraftv1.MetaCommand_SettleParts:
		return nil, s.settleParts(c.SettleParts)
	case *rowraftv1.MetaCommand_StopJob:
		return nil, s.stopJob(c.StopJob)
	case *rowraftv1.MetaCommand_ForgetJob:
		return nil, s.forgetJob(c.ForgetJob)
	case *rowraftv1.MetaCommand_StartGeneration:
		return s.startGeneration(c.StartGeneration)
	case *rowraftv1.MetaCommand_RaiseVersion:
		return nil, s.raiseVersion(c.RaiseVersion)
	case *rowraftv1.MetaCommand_ForgetRun:
		s.forgetRun(c.ForgetRun.GetRun())
		return nil, nil
	case *rowraftv1.MetaCommand_SetIntent:
		return s.setIntent(c.SetIntent)
	case *rowraftv1.MetaCommand_EndOperation:
		return nil, s.endOperation(c.EndOperation.GetId())
	case *rowraftv1.MetaCommand_RetireNode:
		return nil, s.retireNode(rowraft.NodeID(c.RetireNode.GetNode()))
	case *rowraftv1.MetaCommand_CreateToken:
		return nil, s.createToken(c.CreateToken)
	case *rowraftv1.MetaCommand_UseToken:
		return nil, s.useToken(c.UseToken)
	case *rowraftv1.MetaCommand_DeleteToken:
		return nil, s.deleteToken(c.DeleteToken.GetId())
	}
	return nil, &raftstore.FatalError{Err: rowraft.Errorf(rowraft.CodeVersionTooNew, "metadata command %T is unknown to this binary", c.Command)}
}

// AppliedIndex returns the index of the last entry that reads see.
func (m *Machine) AppliedIndex() rowraft.Index { return rowraft.Index(m.applied.Load()) }

// Snapshot copies the state, which is small (see the limits in state.go).
func (m *Machine) Snapshot() (raftstore.Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &snapshot{m.state.clone()}, nil
}

type snapshot struct{ state *state }

func (s *snapshot) WriteTo(w io.Writer) (int64, error) {
	p, err := s.state.toProto()
	if err != nil {
		return 0, err
	}
	b, err := encodeFrame(snapshotMagic, RequiredVersion(p), p)
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
	for _, r := range m.state.runs {
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
	return slices.Clone(m.state.moves), slices.Clone(m.state.finished)
}

func (s *state) toProto() (*rowraftv1.MetaState, error) {
	newest, err := s.newMap()
	if err != nil {
		return nil, err
	}
	p := &rowraftv1.MetaState{LastRestore: uint32(s.lastRestore), AppliedIndex: uint64(s.index), Map: rpc.MapToProto(newest), LastIncarnation: uint64(s.lastIncarnation), Restore: s.restore, BegunRestore: s.begun,
		Restored: s.restored, Policies: slices.Clone(s.policies), Runs: slices.Clone(s.runs), EndedRuns: s.endedRuns, Tokens: s.tokens}
	if s.slots == nil {
		p.Map.Slots = nil
	}
	for i := range s.moves {
		p.Moves = append(p.Moves, s.moves[i].ToProto())
	}
	for i := range s.finished {
		p.FinishedMoves = append(p.FinishedMoves, s.finished[i].ToProto())
	}
	p.LastMove = s.lastMove
	for i := range s.operations {
		p.Operations = append(p.Operations, s.operations[i].ToProto())
	}
	for _, id := range s.retired {
		p.Retired = append(p.Retired, string(id))
	}
	for _, d := range s.dropped {
		p.Dropped = append(p.Dropped, &rowraftv1.MetaDroppedTable{Id: uint64(d.ID), TableEpoch: uint64(d.Epoch), Name: d.Name})
	}
	return p, nil
}

func stateFromProto(p *rowraftv1.MetaState) (*state, error) {
	m, err := rpc.MapFromProto(p.GetMap())
	if err != nil {
		return nil, err
	}
	s := &state{index: rowraft.Index(p.GetAppliedIndex()), cluster: *m, lastIncarnation: rowraft.Incarnation(p.GetLastIncarnation()), restore: p.GetRestore(), begun: p.GetBegunRestore()}
	if n := len(s.begun); n != 0 && n != 16 {
		return nil, fmt.Errorf("a restore id of %d bytes", n)
	}
	if len(m.Shards) > 0 {
		s.slots = m.Slots()
	}
	for _, d := range p.GetDropped() {
		s.dropped = append(s.dropped, DroppedTable{rowraft.TableID(d.GetId()), rowraft.TableEpoch(d.GetTableEpoch()), d.GetName()})
	}
	if err := s.checkDropped(); err != nil {
		return nil, err
	}
	if !slices.IsSortedFunc(s.cluster.Nodes, func(a, b clustermap.Node) int { return strings.Compare(string(a.ID), string(b.ID)) }) {
		return nil, fmt.Errorf("nodes are out of order")
	}
	if err := errors.Join(s.restoredFromProto(p), s.policiesFromProto(p), s.runsFromProto(p), s.tokensFromProto(p)); err != nil {
		return nil, err
	}
	if err := s.movesFromProto(p); err != nil {
		return nil, err
	}
	return s, s.operationsFromProto(p)
}
