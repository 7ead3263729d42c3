package scheduler

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
	opRunning   = rowraftv1.OperationState_OPERATION_STATE_RUNNING
	opDone      = rowraftv1.OperationState_OPERATION_STATE_DONE
	opCancelled = rowraftv1.OperationState_OPERATION_STATE_CANCELLED

	opDrain        = rowraftv1.OperationKind_OPERATION_KIND_DRAIN
	opDecommission = rowraftv1.OperationKind_OPERATION_KIND_DECOMMISSION
	opReplace      = rowraftv1.OperationKind_OPERATION_KIND_REPLACE
)

// operation is long work on one server: a drain, a decommission or a replacement. The work to do follows from the map
// and the server's intent, so a new leader needs nothing else to continue. The leader that sees the end logs it.
type operation struct {
	id    uint64
	kind  rowraftv1.OperationKind
	node  rowraft.NodeID
	name  string
	state rowraftv1.OperationState
	total uint64
}

func (o *operation) toProto() *rowraftv1.Operation {
	return &rowraftv1.Operation{Id: o.id, Kind: o.kind, Node: string(o.node), Name: o.name, State: o.state, Total: o.total}
}

// setIntent stores what a server is to do. It cancels the running operation of the server and begins one of the given
// kind, which it returns; the zero operation if the kind is 0.
func (s *state) setIntent(c *rowraftv1.MetaSetIntent) (operation, error) {
	id, from, to := rowraft.NodeID(c.GetNode()), c.GetFrom(), c.GetTo()
	i, found := s.findNode(id)
	switch {
	case !found:
		return operation{}, rowraft.Errorf(rowraft.CodeNotFound, "there is no server %s", id)
	case !knownIntent(from) || !knownIntent(to) || c.GetKind() < 0 || c.GetKind() > opReplace:
		return operation{}, rowraft.Errorf(rowraft.CodeInvalidArgument, "server %s: intent %d to %d, operation %d: unknown", s.nodeName(id), from, to, c.GetKind())
	case s.cluster.Nodes[i].Intent != clustermap.Intent(from):
		return operation{}, rowraft.Errorf(rowraft.CodePrecondition, "server %s is %s, not %s: look again", s.nodeName(id), intentName(s.cluster.Nodes[i].Intent), intentName(clustermap.Intent(from)))
	}
	for _, o := range s.operations {
		if o.node == id && o.state == opRunning {
			s.endOperationAs(o.id, opCancelled)
		}
	}
	if from != to {
		s.cluster.Nodes = slices.Clone(s.cluster.Nodes)
		s.cluster.Nodes[i].Intent = clustermap.Intent(to)
		s.cluster.Version++
	}
	if c.GetKind() == 0 {
		return operation{}, nil
	}
	s.lastMove++
	o := operation{id: s.lastMove, kind: c.GetKind(), node: id, name: s.cluster.Nodes[i].Name, state: opRunning, total: c.GetTotal()}
	s.operations = append(slices.Clone(s.operations), o)
	return o, nil
}

func knownIntent(i rowraftv1.NodeIntent) bool {
	return i >= 0 && i <= rowraftv1.NodeIntent_NODE_INTENT_DECOMMISSION
}

// intentName returns the name of an intent for messages.
func intentName(i clustermap.Intent) string {
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
	s.endOperationAs(id, opDone)
	return nil
}

func (s *state) endOperationAs(id uint64, as rowraftv1.OperationState) {
	i := slices.IndexFunc(s.operations, func(o operation) bool { return o.id == id && o.state == opRunning })
	if i < 0 {
		return
	}
	s.operations = slices.Clone(s.operations)
	s.operations[i].state = as
	ended := func(o operation) bool { return o.state != opRunning }
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
		return rowraft.Errorf(rowraft.CodePrecondition, "%s is %s, not decommissioned", s.nodeName(id), intentName(s.cluster.Nodes[i].Intent))
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
		if o.node == id && o.state == opRunning {
			s.endOperationAs(o.id, opDone)
		}
	}
	s.cluster.Nodes = slices.Delete(slices.Clone(s.cluster.Nodes), i, i+1)
	s.cluster.Version++
	s.retired = append(slices.Clone(s.retired), id)
	s.retired = s.retired[max(0, len(s.retired)-maxRetired):]
	return nil
}

// operations returns the operations, by id.
func (m *machine) operations() []operation {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.operations // never changed in place
}

// operationsFromProto loads the operations and the retired servers of a snapshot and checks them.
func (s *state) operationsFromProto(p *rowraftv1.MetaState) error {
	for _, po := range p.GetOperations() {
		o := operation{id: po.GetId(), kind: po.GetKind(), node: rowraft.NodeID(po.GetNode()), name: po.GetName(), state: po.GetState(), total: po.GetTotal()}
		if o.id == 0 || o.id > s.lastMove || o.kind < opDrain || o.kind > opReplace || o.state < opRunning || o.state > opCancelled || po.GetLeft() != 0 || po.GetWaitingFor() != "" {
			return fmt.Errorf("operation %d, of kind %v, is %v; the last one was %d", o.id, o.kind, o.state, s.lastMove)
		}
		s.operations = append(s.operations, o)
	}
	if !slices.IsSortedFunc(s.operations, func(a, b operation) int { return cmp.Compare(a.id, b.id) }) ||
		count(s.operations, func(o operation) bool { return o.state != opRunning }) > maxEnded {
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

// quiet reports whether no restore runs: during one, replicas do not move for balance.
func (m *machine) quiet() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.restore == nil && len(m.state.begun) == 0
}

func containsBytes(list [][]byte, b []byte) bool {
	return slices.ContainsFunc(list, func(o []byte) bool { return bytes.Equal(o, b) })
}
