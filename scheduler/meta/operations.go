package meta

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Limits of the ended operations and retired servers in the state.
const (
	maxEnded   = 32
	maxRetired = 1024
)

const (
	OpRunning   = rowraftv1.OperationState_OPERATION_STATE_RUNNING
	OpDone      = rowraftv1.OperationState_OPERATION_STATE_DONE
	OpCancelled = rowraftv1.OperationState_OPERATION_STATE_CANCELLED

	OpDrain        = rowraftv1.OperationKind_OPERATION_KIND_DRAIN
	OpDecommission = rowraftv1.OperationKind_OPERATION_KIND_DECOMMISSION
	OpReplace      = rowraftv1.OperationKind_OPERATION_KIND_REPLACE
)

// Operation is long work on one server: a drain, a decommission or a replacement. The work to do follows from the map
// and the server's intent, so a new leader needs nothing else to continue. The leader that sees the end logs it.
type Operation struct {
	ID    uint64
	Kind  rowraftv1.OperationKind
	Node  rowraft.NodeID
	name  string
	State rowraftv1.OperationState
	total uint64
}

// ToProto converts the operation for a reply or a snapshot.
func (o *Operation) ToProto() *rowraftv1.Operation {
	return &rowraftv1.Operation{Id: o.ID, Kind: o.Kind, Node: string(o.Node), Name: o.name, State: o.State, Total: o.total}
}

// setIntent stores what a server is to do. It cancels the running operation of the server and begins one of the given
// kind, which it returns; the zero operation if the kind is 0.
func (s *state) setIntent(c *rowraftv1.MetaSetIntent) (Operation, error) {
	id, from, to := rowraft.NodeID(c.GetNode()), c.GetFrom(), c.GetTo()
	i, found := s.findNode(id)
	switch {
	case !found:
		return Operation{}, rowraft.Errorf(rowraft.CodeNotFound, "there is no server %s", id)
	case !KnownIntent(from) || !KnownIntent(to) || c.GetKind() < 0 || c.GetKind() > OpReplace:
		return Operation{}, rowraft.Errorf(rowraft.CodeInvalidArgument, "server %s: intent %d to %d, operation %d: unknown", s.nodeName(id), from, to, c.GetKind())
	case s.cluster.Nodes[i].Intent != clustermap.Intent(from):
		return Operation{}, rowraft.Errorf(rowraft.CodePrecondition, "server %s is %s, not %s: look again", s.nodeName(id), IntentName(s.cluster.Nodes[i].Intent), IntentName(clustermap.Intent(from)))
	}
	for _, o := range s.operations {
		if o.Node == id && o.State == OpRunning {
			s.endOperationAs(o.ID, OpCancelled)
		}
	}
	if from != to {
		s.cluster.Nodes = slices.Clone(s.cluster.Nodes)
		s.cluster.Nodes[i].Intent = clustermap.Intent(to)
		s.cluster.Version++
	}
	if c.GetKind() == 0 {
		return Operation{}, nil
	}
	s.lastMove++
	o := Operation{ID: s.lastMove, Kind: c.GetKind(), Node: id, name: s.cluster.Nodes[i].Name, State: OpRunning, total: c.GetTotal()}
	s.operations = append(slices.Clone(s.operations), o)
	return o, nil
}

// KnownIntent reports whether this binary knows the intent.
func KnownIntent(i rowraftv1.NodeIntent) bool {
	return i >= 0 && i <= rowraftv1.NodeIntent_NODE_INTENT_DECOMMISSION
}

// IntentName returns the name of an intent for messages.
func IntentName(i clustermap.Intent) string {
	switch i {
	case clustermap.Drain:
		return "drained"
	case clustermap.Decommission:
		return "decommissioned"
	}
	return "serving"
}

// findNode returns the index of a node in the map, or where it belongs.
func (s *state) findNode(id rowraft.NodeID) (int, bool) {
	return slices.BinarySearchFunc(s.cluster.Nodes, id, func(a clustermap.Node, id rowraft.NodeID) int {
		return strings.Compare(string(a.ID), string(id))
	})
}

// endOperation records that an operation is done.
func (s *state) endOperation(id uint64) error {
	if id == 0 || id > s.lastMove {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "operation %d: the last one was %d", id, s.lastMove)
	}
	s.endOperationAs(id, OpDone)
	return nil
}

func (s *state) endOperationAs(id uint64, as rowraftv1.OperationState) {
	i := slices.IndexFunc(s.operations, func(o Operation) bool { return o.ID == id && o.State == OpRunning })
	if i < 0 {
		return
	}
	s.operations = slices.Clone(s.operations)
	s.operations[i].State = as
	ended := func(o Operation) bool { return o.State != OpRunning }
	for n := count(s.operations, ended); n > maxEnded; n-- {
		at := slices.IndexFunc(s.operations, ended)
		s.operations = slices.Delete(s.operations, at, at+1)
	}
}

func count[T any](list []T, is func(T) bool) (n int) {
	for _, x := range list {
		if is(x) {
			n++
		}
	}
	return n
}

// retireNode deletes a server from the map and records its id, so that putNode refuses it from then on. A repeated call
// does nothing.
func (s *state) retireNode(id rowraft.NodeID) error {
	if slices.Contains(s.retired, id) {
		return nil
	}
	i, found := s.findNode(id)
	switch {
	case !found:
		return rowraft.Errorf(rowraft.CodeNotFound, "there is no server %s", id)
	case s.cluster.Nodes[i].Scheduler:
		return rowraft.Errorf(rowraft.CodePrecondition, "%s is a member of the scheduler, which stays", s.nodeName(id))
	case s.cluster.Nodes[i].Intent != clustermap.Decommission:
		return rowraft.Errorf(rowraft.CodePrecondition, "%s is %s, not decommissioned", s.nodeName(id), IntentName(s.cluster.Nodes[i].Intent))
	}
	for _, sh := range s.cluster.Shards {
		if _, has := sh.On(id); has {
			return rowraft.Errorf(rowraft.CodePrecondition, "%s has a replica of shard %d", s.nodeName(id), sh.ID)
		}
	}
	s.cluster.Shards = slices.Clone(s.cluster.Shards)
	for j := range s.cluster.Shards { // the server will never report that these are deleted
		sh := &s.cluster.Shards[j]
		sh.Removed = slices.DeleteFunc(slices.Clone(sh.Removed), func(r clustermap.Removed) bool { return r.Node == id })
		if len(sh.Removed) == 0 {
			sh.Removed = nil
		}
	}
	for _, o := range s.operations {
		if o.Node == id && o.State == OpRunning {
			s.endOperationAs(o.ID, OpDone)
		}
	}
	s.cluster.Nodes = slices.Delete(slices.Clone(s.cluster.Nodes), i, i+1)
	s.cluster.Version++
	s.retired = append(slices.Clone(s.retired), id)
	s.retired = s.retired[max(0, len(s.retired)-maxRetired):]
	return nil
}

// Operations returns the operations, by id.
func (m *Machine) Operations() []Operation {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.operations // never changed in place
}

// operationsFromProto loads the operations and the retired servers of a snapshot and checks them.
func (s *state) operationsFromProto(p *rowraftv1.MetaState) error {
	for _, po := range p.GetOperations() {
		o := Operation{ID: po.GetId(), Kind: po.GetKind(), Node: rowraft.NodeID(po.GetNode()), name: po.GetName(), State: po.GetState(), total: po.GetTotal()}
		if o.ID == 0 || o.ID > s.lastMove || o.Kind < OpDrain || o.Kind > OpReplace || o.State < OpRunning || o.State > OpCancelled || po.GetLeft() != 0 || po.GetWaitingFor() != "" {
			return fmt.Errorf("operation %d, of kind %v, is %v; the last one was %d", o.ID, o.Kind, o.State, s.lastMove)
		}
		s.operations = append(s.operations, o)
	}
	if !slices.IsSortedFunc(s.operations, func(a, b Operation) int { return cmp.Compare(a.ID, b.ID) }) ||
		count(s.operations, func(o Operation) bool { return o.State != OpRunning }) > maxEnded {
		return fmt.Errorf("operations are out of order, or too many")
	}
	for _, id := range p.GetRetired() {
		s.retired = append(s.retired, rowraft.NodeID(id))
	}
	if len(s.retired) > maxRetired {
		return fmt.Errorf("%d retired nodes", len(s.retired))
	}
	for _, n := range s.cluster.Nodes {
		if n.Intent > clustermap.Decommission {
			return fmt.Errorf("node %s has intent %d", n.ID, n.Intent)
		}
	}
	return nil
}

// NoRestore reports whether no restore runs: during one, replicas do not move for balance.
func (m *Machine) NoRestore() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.restore == nil && len(m.state.begun) == 0
}

func containsBytes(list [][]byte, b []byte) bool {
	return slices.ContainsFunc(list, func(o []byte) bool { return bytes.Equal(o, b) })
}
