package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// How a replica moves
//
// A move is an entry in the metadata group and goes through phases, each of which
// says what is being done to the shard's Raft group, and may be done already:
//
//	LEARN    the map lists the new replica as a learner: its server starts it, the
//	         shard's leader adds it, it catches up
//	PROMOTE  the leader makes it a voter
//	REMOVE   the map lists it as a replica; the old one hands over the lead if it has
//	         it, and leaves the group
//	DONE     the map lists the old one as removed: its server deletes it
//	CANCEL   instead of PROMOTE or after it: the new one leaves the group again
//
// A move without an old replica adds one: there is nobody to leave. One without a new
// replica removes one, and begins with REMOVE.
//
// The phase is logged before the work that it allows, and the work is decided on
// what the Raft group itself says and compared with its configuration's index. So
// whoever drives a move may die at any point, and the next leader of the metadata
// group goes on with what it finds (drive.go).

type phase = rowraftv1.MovePhase

const (
	phaseLearn     = rowraftv1.MovePhase_MOVE_PHASE_LEARN
	phasePromote   = rowraftv1.MovePhase_MOVE_PHASE_PROMOTE
	phaseRemove    = rowraftv1.MovePhase_MOVE_PHASE_REMOVE
	phaseCancel    = rowraftv1.MovePhase_MOVE_PHASE_CANCEL
	phaseDone      = rowraftv1.MovePhase_MOVE_PHASE_DONE
	phaseCancelled = rowraftv1.MovePhase_MOVE_PHASE_CANCELLED
)

// maxFinished bounds the moves that are remembered after their end.
const maxFinished = 32

// move is one replica on its way.
type move struct {
	id       uint64 // from 1, in the order of the log
	shard    rowraft.ShardID
	from, to clustermap.Replica // from is empty when a replica is added, to when one is removed
	phase    phase
	reason   rowraftv1.MoveReason
}

func (m *move) toProto() *rowraftv1.Move {
	p := &rowraftv1.Move{Id: m.id, Shard: uint32(m.shard), Phase: m.phase, Reason: m.reason}
	if m.from.ID != "" {
		p.From = rpc.ReplicaToProto(m.from)
	}
	if m.to.ID != "" {
		p.To = rpc.ReplicaToProto(m.to)
	}
	return p
}

func moveFromProto(p *rowraftv1.Move) move {
	return move{
		id: p.GetId(), shard: rowraft.ShardID(p.GetShard()), phase: p.GetPhase(), reason: p.GetReason(),
		from: rpc.ReplicaFromProto(p.GetFrom()), to: rpc.ReplicaFromProto(p.GetTo()),
	}
}

// startMove logs a move and makes its new replica a learner of the map.
func (s *state) startMove(c *rowraftv1.MetaStartMove) (move, error) {
	shard, from, to := rowraft.ShardID(c.GetShard()), rowraft.NodeID(c.GetFromNode()), rpc.ReplicaFromProto(c.GetTo())
	if int(shard) >= len(s.cluster.Shards) {
		return move{}, rowraft.Errorf(rowraft.CodeInvalidArgument, "move a replica of shard %d: the cluster has %d shards", shard, len(s.cluster.Shards))
	}
	sh := s.cluster.Shards[shard]
	m := move{shard: shard, to: to, phase: phaseLearn, reason: c.GetReason()}
	i := slices.IndexFunc(sh.Replicas, func(r clustermap.Replica) bool { return r.Node == from })
	if i >= 0 {
		m.from = sh.Replicas[i]
	}
	if err := s.checkMove(c, &m, sh); err != nil {
		return move{}, fmt.Errorf("move a replica of shard %d: %w", shard, err)
	}
	s.lastMove++
	m.id = s.lastMove
	at, _ := s.moveOf(shard)
	if to.ID == "" {
		m.phase = phaseRemove
		s.moves = slices.Insert(s.moves, at, m)
		return m, nil
	}
	s.moves = slices.Insert(s.moves, at, m)
	sh.Learners = append(slices.Clone(sh.Learners), to)
	s.putShard(sh)
	return m, nil
}

// checkMove refuses a move that cannot begin.
func (s *state) checkMove(c *rowraftv1.MetaStartMove, m *move, sh clustermap.Shard) error {
	from := rowraft.NodeID(c.GetFromNode())
	adds, removes := from == "" && c.GetReason() != 0, m.to == clustermap.Replica{} && c.GetReason() != 0
	if version := rowraft.MapVersion(c.GetMapVersion()); version != s.cluster.Version {
		return rowraft.Errorf(rowraft.CodePrecondition, "it was decided on map version %d, the map has %d: look again", version, s.cluster.Version)
	}
	if c.GetReason() < 0 || c.GetReason() > rowraftv1.MoveReason_MOVE_REASON_FENCED || adds && removes {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "reason %d, from nowhere (%v) to nowhere (%v)", c.GetReason(), adds, removes)
	}
	if !removes {
		if err := s.checkTarget(m.to); err != nil {
			return err
		}
	}
	if m.from.ID == "" && !adds {
		return rowraft.Errorf(rowraft.CodeNotFound, "server %s has no replica of it", s.nodeName(from))
	}
	if j, found := s.moveOf(m.shard); found {
		what := "another change of its replicas runs"
		if other := s.moves[j]; other.from.ID != "" && other.to.ID != "" {
			what = fmt.Sprintf("the one on %s is moving to %s already", s.nodeName(other.from.Node), s.nodeName(other.to.Node))
		}
		return rowraft.Errorf(rowraft.CodeAlreadyExists, "%s; one replica of a shard moves at a time", what)
	}
	_, has := sh.On(m.to.Node)
	switch {
	case removes && len(sh.Replicas) < 2:
		return rowraft.Errorf(rowraft.CodePrecondition, "it is the only one")
	case !removes && has:
		return rowraft.Errorf(rowraft.CodeAlreadyExists, "server %s has one already", s.nodeName(m.to.Node))
	case adds && len(sh.Replicas) >= ReplicasPerShard:
		return rowraft.Errorf(rowraft.CodePrecondition, "it has %d", len(sh.Replicas))
	}
	return nil
}

// checkTarget refuses a new replica that cannot be made.
func (s *state) checkTarget(to clustermap.Replica) error {
	target, known := s.cluster.Node(to.Node)
	switch {
	case to.ID == "" || len(to.ID) > maxNameLength || s.hasReplica(to.ID):
		return rowraft.Errorf(rowraft.CodeInternal, "replica id %q is empty, too long or in use", to.ID)
	case !known:
		return rowraft.Errorf(rowraft.CodeNotFound, "there is no server %s", to.Node)
	case target.NoShards:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s is a scheduler and holds no replicas", s.nodeName(to.Node))
	case target.Intent != clustermap.Serve:
		return rowraft.Errorf(rowraft.CodePrecondition, "%s is %s and gets no replicas", s.nodeName(to.Node), intentName(target.Intent))
	}
	return nil
}

// hasReplica reports whether any shard has, or has just lost, a replica of this id.
func (s *state) hasReplica(id rowraft.ReplicaID) bool {
	for _, sh := range s.cluster.Shards {
		is := func(r clustermap.Replica) bool { return r.ID == id }
		if slices.ContainsFunc(sh.Replicas, is) || slices.ContainsFunc(sh.Learners, is) ||
			slices.ContainsFunc(sh.Removed, func(r clustermap.Removed) bool { return r.ID == id }) {
			return true
		}
	}
	return false
}

// moveOf returns where the move of a shard stands in s.moves, or belongs.
func (s *state) moveOf(shard rowraft.ShardID) (int, bool) {
	return slices.BinarySearchFunc(s.moves, shard, func(m move, id rowraft.ShardID) int { return cmp.Compare(m.shard, id) })
}

// putShard replaces a shard and makes a new version of the map. The lists in sh
// are its own: maps that were published share the old ones.
func (s *state) putShard(sh clustermap.Shard) {
	s.cluster.Shards = slices.Clone(s.cluster.Shards)
	s.cluster.Shards[sh.ID] = sh
	s.cluster.Version++
}

// nextPhases lists what may follow.
var nextPhases = map[phase][]phase{
	phaseLearn:   {phasePromote, phaseCancel},
	phasePromote: {phaseRemove, phaseCancel},
	phaseRemove:  {phaseDone},
	phaseCancel:  {phaseCancelled},
}

// advanceMove takes move id from one phase to the next, and the map with it. To
// repeat it changes nothing.
func (s *state) advanceMove(id uint64, from, to phase) (move, error) {
	for _, m := range s.finished {
		if m.id == id && m.phase == to {
			return m, nil
		}
	}
	i := slices.IndexFunc(s.moves, func(m move) bool { return m.id == id })
	if i < 0 {
		return move{}, rowraft.Errorf(rowraft.CodePrecondition, "move %d is not running", id)
	}
	m := s.moves[i]
	if m.phase == to {
		return m, nil
	}
	if m.phase != from || !slices.Contains(nextPhases[from], to) {
		return move{}, rowraft.Errorf(rowraft.CodePrecondition, "move %d is in phase %s: it cannot go from %s to %s", id, phaseName(m.phase), phaseName(from), phaseName(to))
	}
	m.phase = to
	sh := s.cluster.Shards[m.shard]
	switch to {
	case phaseRemove:
		sh.Learners = without(sh.Learners, m.to.ID)
		at := slices.IndexFunc(sh.Replicas, func(r clustermap.Replica) bool { return r.ID == m.from.ID })
		if at < 0 { // it is added
			at = len(sh.Replicas) - 1
		}
		sh.Replicas = slices.Insert(slices.Clone(sh.Replicas), at+1, m.to)
		sh.Changes++
		s.putShard(sh)
	case phaseDone:
		if m.from.ID == "" {
			break
		}
		sh.Replicas = without(sh.Replicas, m.from.ID)
		sh.Changes++
		s.bury(sh, m.from)
	case phaseCancelled:
		sh.Learners = without(sh.Learners, m.to.ID)
		s.bury(sh, m.to)
	}
	if to == phaseDone || to == phaseCancelled {
		s.moves = slices.Delete(slices.Clone(s.moves), i, i+1)
		s.finished = append(slices.Clone(s.finished), m)
		s.finished = s.finished[max(0, len(s.finished)-maxFinished):]
	} else {
		s.moves[i] = m
	}
	return m, nil
}

// bury lists r among the removed replicas of sh.
func (s *state) bury(sh clustermap.Shard, r clustermap.Replica) {
	sh.Removed = append(slices.Clone(sh.Removed), clustermap.Removed{Replica: r, Version: s.cluster.Version + 1})
	s.putShard(sh)
}

// forgetReplica drops a removed replica whose server has deleted it.
func (s *state) forgetReplica(shard rowraft.ShardID, id rowraft.ReplicaID) error {
	if int(shard) >= len(s.cluster.Shards) {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "shard %d of %d", shard, len(s.cluster.Shards))
	}
	sh := s.cluster.Shards[shard]
	i := slices.IndexFunc(sh.Removed, func(r clustermap.Removed) bool { return r.ID == id })
	if i < 0 {
		return nil
	}
	sh.Removed = slices.Delete(slices.Clone(sh.Removed), i, i+1)
	s.putShard(sh)
	return nil
}

func without(list []clustermap.Replica, id rowraft.ReplicaID) []clustermap.Replica {
	return slices.DeleteFunc(slices.Clone(list), func(r clustermap.Replica) bool { return r.ID == id })
}

// nodeName is what people call a node.
func (s *state) nodeName(id rowraft.NodeID) string {
	return labelOf(&s.cluster, id)
}

// phaseName is what people call a phase.
func phaseName(p phase) string {
	return strings.ToLower(strings.TrimPrefix(p.String(), "MOVE_PHASE_"))
}

// movesFromProto reads the moves of a snapshot.
func (s *state) movesFromProto(p *rowraftv1.MetaState) error {
	s.lastMove = p.GetLastMove()
	for _, pm := range p.GetMoves() {
		m := moveFromProto(pm)
		if int(m.shard) >= len(s.cluster.Shards) || nextPhases[m.phase] == nil || m.id == 0 || m.id > s.lastMove || m.to.ID == "" && m.phase != phaseRemove {
			return fmt.Errorf("move %d of shard %d is in phase %v, the last move was %d", m.id, m.shard, m.phase, s.lastMove)
		}
		s.moves = append(s.moves, m)
	}
	for _, pm := range p.GetFinishedMoves() {
		s.finished = append(s.finished, moveFromProto(pm))
	}
	if len(s.finished) > maxFinished || !slices.IsSortedFunc(s.moves, func(a, b move) int { return cmp.Compare(a.shard, b.shard) }) {
		return fmt.Errorf("moves are out of order, or %d finished ones are too many", len(s.finished))
	}
	return nil
}
