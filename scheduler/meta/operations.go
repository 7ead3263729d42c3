package meta

import (
	"cmp"
	"fmt"
	"slices"

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

	begunNs, endedNs uint64 // Unix times of the commands; endedNs is 0 while it runs
}

// ToProto converts the operation for a reply or a snapshot.
func (o *Operation) ToProto() *rowraftv1.Operation {
	return &rowraftv1.Operation{Id: o.ID, Kind: o.Kind, Node: string(o.Node), Name: o.name, State: o.State, Total: o.total,
		BegunNs: o.begunNs, EndedNs: o.endedNs}
}

// setIntent stores what a server is to do. It cancels the running operation of the server and begins one of the given
// kind, which it returns; the zero operation if the kind is 0.
func (t *topology) setIntent(c *rowraftv1.MetaSetIntent, nowNs uint64) (Operation, error) {
	id, from, to := rowraft.NodeID(c.GetNode()), c.GetFrom(), c.GetTo()
	i, found := t.findNode(id)
	switch {
	case !found:
		return Operation{}, rowraft.Errorf(rowraft.CodeNotFound, "there is no server %s", id)
	case !KnownIntent(from) || !KnownIntent(to) || c.GetKind() < 0 || c.GetKind() > OpReplace:
		return Operation{}, rowraft.Errorf(rowraft.CodeInvalidArgument, "server %s: intent %d to %d, operation %d: unknown",
			t.nodeName(id), from, to, c.GetKind())
	case t.cluster.Nodes[i].Intent != clustermap.Intent(from):
		return Operation{}, rowraft.Errorf(rowraft.CodePrecondition, "server %s is %s, not %s: look again", t.nodeName(id),
			IntentName(t.cluster.Nodes[i].Intent), IntentName(clustermap.Intent(from)))
	}
	for _, o := range t.operations {
		if o.Node == id && o.State == OpRunning {
			t.endOperationAs(o.ID, OpCancelled, nowNs)
		}
	}
	if from != to {
		t.cluster.Nodes[i].Intent = clustermap.Intent(to)
		t.cluster.Version++
	}
	if c.GetKind() == 0 {
		return Operation{}, nil
	}
	t.lastMove++
	o := Operation{ID: t.lastMove, Kind: c.GetKind(), Node: id, name: t.cluster.Nodes[i].Name, State: OpRunning,
		total: c.GetTotal(), begunNs: nowNs}
	t.operations = append(slices.Clone(t.operations), o)
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

// endOperation records that an operation is done.
func (t *topology) endOperation(id, nowNs uint64) error {
	if id == 0 || id > t.lastMove {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "operation %d: the last one was %d", id, t.lastMove)
	}
	t.endOperationAs(id, OpDone, nowNs)
	return nil
}

func (t *topology) endOperationAs(id uint64, as rowraftv1.OperationState, nowNs uint64) {
	i := slices.IndexFunc(t.operations, func(o Operation) bool { return o.ID == id && o.State == OpRunning })
	if i < 0 {
		return
	}
	t.operations = slices.Clone(t.operations)
	t.operations[i].State, t.operations[i].endedNs = as, nowNs
	ended := func(o Operation) bool { return o.State != OpRunning }
	for n := count(t.operations, ended); n > maxEnded; n-- {
		at := slices.IndexFunc(t.operations, ended)
		t.operations = slices.Delete(t.operations, at, at+1)
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
func (t *topology) retireNode(id rowraft.NodeID, nowNs uint64) error {
	if slices.Contains(t.retired, id) {
		return nil
	}
	i, found := t.findNode(id)
	switch {
	case !found:
		return rowraft.Errorf(rowraft.CodeNotFound, "there is no server %s", id)
	case t.cluster.Nodes[i].Scheduler:
		return rowraft.Errorf(rowraft.CodePrecondition, "%s is a member of the scheduler, which stays", t.nodeName(id))
	case t.cluster.Nodes[i].Intent != clustermap.Decommission:
		return rowraft.Errorf(rowraft.CodePrecondition, "%s is %s, not decommissioned", t.nodeName(id),
			IntentName(t.cluster.Nodes[i].Intent))
	}
	for _, sh := range t.cluster.Shards {
		if _, has := sh.On(id); has {
			return rowraft.Errorf(rowraft.CodePrecondition, "%s has a replica of shard %d", t.nodeName(id), sh.ID)
		}
	}
	t.cluster.Shards = slices.Clone(t.cluster.Shards)
	for j := range t.cluster.Shards { // the server will never report that these are deleted
		sh := &t.cluster.Shards[j]
		sh.Removed = slices.DeleteFunc(slices.Clone(sh.Removed), func(r clustermap.Removed) bool { return r.Node == id })
		if len(sh.Removed) == 0 {
			sh.Removed = nil
		}
	}
	for _, o := range t.operations {
		if o.Node == id && o.State == OpRunning {
			t.endOperationAs(o.ID, OpDone, nowNs)
		}
	}
	t.cluster.Nodes = slices.Delete(slices.Clone(t.cluster.Nodes), i, i+1)
	t.cluster.Version++
	t.retired = append(slices.Clone(t.retired), id)
	// The list bounds the state. A server that was forgotten here could register again, but 1,024 others have been retired
	// since.
	t.retired = t.retired[max(0, len(t.retired)-maxRetired):]
	return nil
}

// Operations returns the operations, by id.
func (m *Machine) Operations() []Operation {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.topology.operations // never changed in place
}

// loadOperations loads the operations and the retired servers of a snapshot and checks them.
func (t *topology) loadOperations(p *rowraftv1.MetaState) error {
	for _, po := range p.GetOperations() {
		o := Operation{ID: po.GetId(), Kind: po.GetKind(), Node: rowraft.NodeID(po.GetNode()), name: po.GetName(),
			State: po.GetState(), total: po.GetTotal(), begunNs: po.GetBegunNs(), endedNs: po.GetEndedNs()}
		if o.ID == 0 || o.ID > t.lastMove || o.Kind < OpDrain || o.Kind > OpReplace || o.State < OpRunning ||
			o.State > OpCancelled || po.GetLeft() != 0 || po.GetWaitingFor() != "" {
			return fmt.Errorf("operation %d, of kind %v, is %v; the last one was %d", o.ID, o.Kind, o.State, t.lastMove)
		}
		t.operations = append(t.operations, o)
	}
	if !slices.IsSortedFunc(t.operations, func(a, b Operation) int { return cmp.Compare(a.ID, b.ID) }) ||
		count(t.operations, func(o Operation) bool { return o.State != OpRunning }) > maxEnded {
		return fmt.Errorf("operations are out of order, or too many")
	}
	for _, id := range p.GetRetired() {
		t.retired = append(t.retired, rowraft.NodeID(id))
	}
	if len(t.retired) > maxRetired {
		return fmt.Errorf("%d retired servers", len(t.retired))
	}
	for _, n := range t.cluster.Nodes {
		if n.Intent > clustermap.Decommission {
			return fmt.Errorf("server %s has intent %d", n.ID, n.Intent)
		}
	}
	return nil
}
