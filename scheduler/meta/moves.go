package meta

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/placement"
)

// How a replica moves
//
// A move is part of the state of the scheduler's group. Its phase says what is being done to
// the shard's Raft group; that may be done already:
//
//	LEARN      the map lists the new replica as a learner: its server starts it, the
//	           shard's leader adds it, it catches up
//	PROMOTE    the shard's leader makes it a voter
//	REMOVE     the map lists it as a replica; the old one hands over the leadership if
//	           it leads, and is taken out of the group
//	DONE       the map lists the old one as removed: its server deletes it
//	CANCEL     from LEARN or PROMOTE: the new one is taken out of the group again
//	CANCELLED  the map lists the new one as removed: its server deletes it
//
// A move without an old replica adds one, and REMOVE has no work. A move without a new
// replica removes one, and begins with REMOVE.
//
// A phase is logged before the work that it allows. The driver decides the work by the
// members of the Raft group itself, and names the configuration index that it has read. So
// a driver may die at any point: the next leader of the scheduler reads the members
// and continues (drive.go).

type Phase = rowraftv1.MovePhase

const (
	PhaseLearn     = rowraftv1.MovePhase_MOVE_PHASE_LEARN
	PhasePromote   = rowraftv1.MovePhase_MOVE_PHASE_PROMOTE
	PhaseRemove    = rowraftv1.MovePhase_MOVE_PHASE_REMOVE
	PhaseCancel    = rowraftv1.MovePhase_MOVE_PHASE_CANCEL
	PhaseDone      = rowraftv1.MovePhase_MOVE_PHASE_DONE
	PhaseCancelled = rowraftv1.MovePhase_MOVE_PHASE_CANCELLED
)

// maxFinished bounds the moves that the state keeps after their end, for `rowraft shard moves`.
const maxFinished = 32

// Move is the move of one replica of a shard; see "How a replica moves".
type Move struct {
	ID       uint64 // from 1, in log order
	Shard    rowraft.ShardID
	From, To clustermap.Replica // from is empty for an addition, to for a removal
	Phase    Phase
	Reason   rowraftv1.MoveReason

	BegunNs, EndedNs uint64 // Unix times of the commands; EndedNs is 0 while it runs
}

// ToProto converts the move for a reply or a snapshot.
func (m *Move) ToProto() *rowraftv1.Move {
	p := &rowraftv1.Move{Id: m.ID, Shard: uint32(m.Shard), Phase: m.Phase, Reason: m.Reason,
		BegunNs: m.BegunNs, EndedNs: m.EndedNs}
	if m.From.ID != "" {
		p.From = rpc.ReplicaToProto(m.From)
	}
	if m.To.ID != "" {
		p.To = rpc.ReplicaToProto(m.To)
	}
	return p
}

func moveFromProto(p *rowraftv1.Move) Move {
	return Move{
		ID: p.GetId(), Shard: rowraft.ShardID(p.GetShard()), Phase: p.GetPhase(), Reason: p.GetReason(),
		From: rpc.ReplicaFromProto(p.GetFrom()), To: rpc.ReplicaFromProto(p.GetTo()),
		BegunNs: p.GetBegunNs(), EndedNs: p.GetEndedNs(),
	}
}

// Took returns the time of a move that has ended; 0 if it is unknown because the clocks of two leaders differ.
func (m *Move) Took() time.Duration {
	if m.EndedNs < m.BegunNs {
		return 0
	}
	return time.Duration(m.EndedNs - m.BegunNs)
}

// startMove adds a move to the state and lists its new replica as a learner in the map.
func (t *topology) startMove(c *rowraftv1.MetaStartMove, nowNs uint64) (Move, error) {
	shard, from, to := rowraft.ShardID(c.GetShard()), rowraft.NodeID(c.GetFromNode()), rpc.ReplicaFromProto(c.GetTo())
	if int(shard) >= len(t.cluster.Shards) {
		return Move{}, rowraft.Errorf(rowraft.CodeInvalidArgument, "move a replica of shard %d: the cluster has %d shards",
			shard, len(t.cluster.Shards))
	}
	sh := t.cluster.Shards[shard]
	m := Move{Shard: shard, To: to, Phase: PhaseLearn, Reason: c.GetReason(), BegunNs: nowNs}
	i := slices.IndexFunc(sh.Replicas, func(r clustermap.Replica) bool { return r.Node == from })
	if i >= 0 {
		m.From = sh.Replicas[i]
	}
	if err := t.checkMove(c, &m, sh); err != nil {
		return Move{}, fmt.Errorf("move a replica of shard %d: %w", shard, err)
	}
	// Ids are never used twice, so a late AdvanceMove of an old move cannot advance a new one of the same shard.
	t.lastMove++
	m.ID = t.lastMove
	at, _ := t.moveOf(shard)
	if to.ID == "" {
		m.Phase = PhaseRemove
		t.moves = slices.Insert(t.moves, at, m)
		return m, nil
	}
	t.moves = slices.Insert(t.moves, at, m)
	sh.Learners = append(slices.Clone(sh.Learners), to)
	t.putShard(sh)
	return m, nil
}

// checkMove refuses a move that cannot begin. The map version must be the current one, because the move was decided on
// it.
func (t *topology) checkMove(c *rowraftv1.MetaStartMove, m *Move, sh clustermap.Shard) error {
	from := rowraft.NodeID(c.GetFromNode())
	adds, removes := from == "" && c.GetReason() != 0, m.To == clustermap.Replica{} && c.GetReason() != 0
	// Two moves that were decided on one map could both be right alone and wrong together, for example fill one server or
	// empty one zone.
	if version := rowraft.MapVersion(c.GetMapVersion()); version != t.cluster.Version {
		return rowraft.Errorf(rowraft.CodePrecondition, "it was decided on map version %d, the map has %d: look again",
			version, t.cluster.Version)
	}
	if c.GetReason() < 0 || c.GetReason() > rowraftv1.MoveReason_MOVE_REASON_FENCED || adds && removes {
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"reason %d, without a source: %v, without a target: %v: want a known reason, and a source or a target",
			c.GetReason(), adds, removes)
	}
	if !removes {
		if err := t.checkTarget(m.To); err != nil {
			return err
		}
	}
	if m.From.ID == "" && !adds {
		return rowraft.Errorf(rowraft.CodeNotFound, "server %s has no replica of the shard", t.nodeName(from))
	}
	if j, found := t.moveOf(m.Shard); found {
		what := "another change of its replicas runs"
		if other := t.moves[j]; other.From.ID != "" && other.To.ID != "" {
			what = fmt.Sprintf("the replica on %s is moving to %s already", t.nodeName(other.From.Node),
				t.nodeName(other.To.Node))
		}
		return rowraft.Errorf(rowraft.CodeAlreadyExists, "%s; one replica of a shard moves at a time", what)
	}
	_, has := sh.On(m.To.Node)
	switch {
	case removes && len(sh.Replicas) < 2:
		return rowraft.Errorf(rowraft.CodePrecondition, "it is the only replica of the shard")
	case !removes && has:
		return rowraft.Errorf(rowraft.CodeAlreadyExists, "server %s has a replica of the shard already",
			t.nodeName(m.To.Node))
	case adds && len(sh.Replicas) >= placement.ReplicasPerShard:
		return rowraft.Errorf(rowraft.CodePrecondition, "the shard has %d replicas, the limit is %d", len(sh.Replicas),
			placement.ReplicasPerShard)
	}
	return nil
}

// checkTarget refuses a new replica that cannot be created.
func (t *topology) checkTarget(to clustermap.Replica) error {
	target, known := t.cluster.Node(to.Node)
	switch {
	case to.ID == "" || len(to.ID) > maxNameLength || t.hasReplica(to.ID):
		return rowraft.Errorf(rowraft.CodeInternal, "replica id %q is empty, too long or in use", to.ID)
	case !known:
		return rowraft.Errorf(rowraft.CodeNotFound, "there is no server %s", to.Node)
	case target.NoShards:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s is a scheduler and holds no replicas", t.nodeName(to.Node))
	case target.Intent != clustermap.Serve:
		return rowraft.Errorf(rowraft.CodePrecondition, "%s is %s and gets no replicas", t.nodeName(to.Node),
			IntentName(target.Intent))
	}
	return nil
}

// moveOf returns the index of a shard's move in t.moves, or where it belongs.
func (t *topology) moveOf(shard rowraft.ShardID) (int, bool) {
	return slices.BinarySearchFunc(t.moves, shard, func(m Move, id rowraft.ShardID) int {
		return cmp.Compare(m.Shard, id)
	})
}

// nextPhases lists the phases that may follow one; a phase without a row ends the move.
var nextPhases = map[Phase][]Phase{
	PhaseLearn:   {PhasePromote, PhaseCancel},
	PhasePromote: {PhaseRemove, PhaseCancel},
	PhaseRemove:  {PhaseDone},
	PhaseCancel:  {PhaseCancelled},
}

// advanceMove takes move id from one phase to the next and changes the map as the new phase
// needs. Repeating it changes nothing.
func (t *topology) advanceMove(id uint64, from, to Phase, nowNs uint64) (Move, error) {
	// The driver lost the reply and repeats the command, perhaps under the next leader.
	for _, m := range t.finished {
		if m.ID == id && m.Phase == to {
			return m, nil
		}
	}
	i := slices.IndexFunc(t.moves, func(m Move) bool { return m.ID == id })
	if i < 0 {
		return Move{}, rowraft.Errorf(rowraft.CodePrecondition, "move %d is not running", id)
	}
	m := t.moves[i]
	if m.Phase == to {
		return m, nil
	}
	if m.Phase != from || !slices.Contains(nextPhases[from], to) {
		return Move{}, rowraft.Errorf(rowraft.CodePrecondition, "move %d is in phase %s: it cannot go from %s to %s", id,
			PhaseName(m.Phase), PhaseName(from), PhaseName(to))
	}
	m.Phase = to
	sh := t.cluster.Shards[m.Shard]
	switch to {
	case PhaseRemove:
		sh.Learners = without(sh.Learners, m.To.ID)
		at := slices.IndexFunc(sh.Replicas, func(r clustermap.Replica) bool { return r.ID == m.From.ID })
		if at < 0 { // the move only adds a replica: it becomes the last one
			at = len(sh.Replicas) - 1
		}
		sh.Replicas = slices.Insert(slices.Clone(sh.Replicas), at+1, m.To)
		// A shard whose replicas have changed must not be founded again: a server that starts a replica of the first map for
		// the first time reads this number (Host.openReplica).
		sh.Changes++
		t.putShard(sh)
	case PhaseDone:
		if m.From.ID == "" {
			break
		}
		sh.Replicas = without(sh.Replicas, m.From.ID)
		sh.Changes++
		t.listRemoved(sh, m.From)
	case PhaseCancelled:
		sh.Learners = without(sh.Learners, m.To.ID)
		t.listRemoved(sh, m.To)
	}
	if to == PhaseDone || to == PhaseCancelled {
		m.EndedNs = nowNs
		t.moves = slices.Delete(slices.Clone(t.moves), i, i+1)
		t.finished = append(slices.Clone(t.finished), m)
		t.finished = t.finished[max(0, len(t.finished)-maxFinished):]
	} else {
		t.moves[i] = m
	}
	return m, nil
}

// listRemoved lists r among the removed replicas of sh, with the version of the map that does.
func (t *topology) listRemoved(sh clustermap.Shard, r clustermap.Replica) {
	// putShard raises the version by one, so this is the version of the first map that lists r as removed. A server that
	// follows it, and no older one, is known to have been told.
	sh.Removed = append(slices.Clone(sh.Removed), clustermap.Removed{Replica: r, Version: t.cluster.Version + 1})
	t.putShard(sh)
}

// forgetReplica drops a removed replica, whose server has deleted it, from the map.
func (t *topology) forgetReplica(shard rowraft.ShardID, id rowraft.ReplicaID) error {
	if int(shard) >= len(t.cluster.Shards) {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "forget a replica of shard %d: the cluster has %d shards", shard,
			len(t.cluster.Shards))
	}
	sh := t.cluster.Shards[shard]
	i := slices.IndexFunc(sh.Removed, func(r clustermap.Removed) bool { return r.ID == id })
	if i < 0 {
		return nil
	}
	sh.Removed = slices.Delete(slices.Clone(sh.Removed), i, i+1)
	t.putShard(sh)
	return nil
}

func without(list []clustermap.Replica, id rowraft.ReplicaID) []clustermap.Replica {
	return slices.DeleteFunc(slices.Clone(list), func(r clustermap.Replica) bool { return r.ID == id })
}

// PhaseName returns the name of a phase for messages.
func PhaseName(p Phase) string {
	return strings.ToLower(strings.TrimPrefix(p.String(), "MOVE_PHASE_"))
}

// loadMoves loads the moves of a snapshot and checks them.
func (t *topology) loadMoves(p *rowraftv1.MetaState) error {
	t.lastMove = p.GetLastMove()
	for _, pm := range p.GetMoves() {
		m := moveFromProto(pm)
		if int(m.Shard) >= len(t.cluster.Shards) || nextPhases[m.Phase] == nil || m.ID == 0 || m.ID > t.lastMove ||
			m.To.ID == "" && m.Phase != PhaseRemove {
			return fmt.Errorf("move %d of shard %d is in phase %v, the last move was %d", m.ID, m.Shard, m.Phase, t.lastMove)
		}
		t.moves = append(t.moves, m)
	}
	for _, pm := range p.GetFinishedMoves() {
		t.finished = append(t.finished, moveFromProto(pm))
	}
	if len(t.finished) > maxFinished || !slices.IsSortedFunc(t.moves,
		func(a, b Move) int { return cmp.Compare(a.Shard, b.Shard) }) {
		return fmt.Errorf("moves are out of order, or %d finished ones are too many", len(t.finished))
	}
	return nil
}
