package scheduler

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/diagnosis"
	"github.com/rowraft/rowraft/scheduler/meta"
	"github.com/rowraft/rowraft/scheduler/placement"
)

// startAttempts bounds how often MoveReplica tries again because the map changed between its look at the map and the
// entry in the log. Another move or a registration can change the map at any time; five changes in a row are
// unlikely.
const startAttempts = 5

// MoveReplica logs a move. From then on the scheduler's leader drives it (drive.go).
// Without a map version in the request it is compared with the newest map. Without a target it chooses one as placement
// does.
func (s *Scheduler) MoveReplica(ctx context.Context,
	req *rowraftv1.MoveReplicaRequest) (*rowraftv1.MoveReplicaReply, error) {
	for attempt := 1; ; attempt++ {
		to, err := req.GetToNode(), error(nil)
		if to == "" {
			to, err = s.placeLoop.chooseTarget(ctx, req)
		}
		if err != nil {
			return nil, err
		}
		m, err := s.driver.proposeMove(ctx, req, to)
		if rowraft.CodeOf(err) == rowraft.CodePrecondition && req.GetMapVersion() == 0 && attempt < startAttempts {
			continue // a server registered, or another move began
		}
		if err != nil {
			return nil, err
		}
		s.logger.Info("a replica begins to move", "move", m.ID, "shard", uint32(m.Shard), "from", string(m.From.Node), "to",
			string(m.To.Node))
		return &rowraftv1.MoveReplicaReply{Move: m.ToProto(), MapVersion: s.mapVersion()}, nil
	}
}

// chooseTarget returns the server to which placement would move the replica of the request.
func (pl *placeLoop) chooseTarget(ctx context.Context, req *rowraftv1.MoveReplicaRequest) (string, error) {
	if _, err := pl.leadingInSync(ctx); err != nil {
		return "", err
	}
	m, shard := pl.view.Map(), rowraft.ShardID(req.GetShard())
	if m == nil || int(shard) >= len(m.Shards) {
		return "", rowraft.Errorf(rowraft.CodeNotFound, "there is no shard %d", shard)
	}
	from, err := m.FindNode(req.GetFromNode())
	if err != nil {
		return "", err
	}
	if _, has := m.Shards[shard].On(from.ID); !has {
		return "", rowraft.Errorf(rowraft.CodeNotFound, "server %s has no replica of shard %d", m.NameOf(from.ID), shard)
	}
	p := newPlaceMemory(0)
	w := pl.world(m, &p)
	if w.Shards[shard].Moving {
		return "", rowraft.Errorf(rowraft.CodeAlreadyExists, "another change of the replicas of shard %d runs", shard)
	}
	to, found := placement.Target(w, shard, from.ID)
	if !found {
		return "", rowraft.Errorf(rowraft.CodePrecondition, "no server can take the replica of shard %d now: each other one "+
			"has a replica of it, is not up, is full or is to leave; add a server, or move the lead alone with `rowraft shard "+
			"transfer-leader %d`", shard, shard)
	}
	return string(to), nil
}

// proposeMove is one attempt of MoveReplica.
func (d *driver) proposeMove(ctx context.Context, req *rowraftv1.MoveReplicaRequest, target string) (meta.Move, error) {
	if _, err := d.leadingInSync(ctx); err != nil {
		return meta.Move{}, err
	}
	m := d.view.Map()
	if m == nil || len(m.Shards) == 0 {
		return meta.Move{}, rowraft.Errorf(rowraft.CodeStarting, "the cluster has no shards yet: %s", d.waitingFor())
	}
	from, err := m.FindNode(req.GetFromNode())
	if err != nil {
		return meta.Move{}, err
	}
	to, err := m.FindNode(target)
	if err != nil {
		return meta.Move{}, err
	}
	if l := d.liveness(to.ID); !l.seen || l.state != diagnosis.Up {
		return meta.Move{}, rowraft.Errorf(rowraft.CodeNoLeader,
			"server %s at %s is not up: it has not sent a heartbeat in the last %v", m.NameOf(to.ID), to.Addr, SuspectAfter)
	}
	version := req.GetMapVersion()
	if version == 0 {
		version = uint64(m.Version)
	}
	return proposeResult[meta.Move](ctx, d.group,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_StartMove{StartMove: &rowraftv1.MetaStartMove{
			Shard: req.GetShard(), FromNode: string(from.ID), To: &rowraftv1.Replica{Id: uuid.NewString(), Node: string(to.ID)},
			MapVersion: version,
		}}})
}

// CancelMove takes the new replica of a move out of the group again, unless the move is in phase REMOVE: then the old
// replica may have been removed from the group, and the shard would be one replica short.
func (s *Scheduler) CancelMove(ctx context.Context,
	req *rowraftv1.CancelMoveRequest) (*rowraftv1.CancelMoveReply, error) {
	if _, err := s.leadingInSync(ctx); err != nil {
		return nil, err
	}
	running, _ := s.machine.Moves()
	for _, m := range running {
		if uint32(m.Shard) != req.GetShard() || req.GetMoveId() != 0 && m.ID != req.GetMoveId() {
			continue
		}
		if m.Phase == meta.PhaseRemove {
			return nil, rowraft.Errorf(rowraft.CodePrecondition, "move %d of shard %d cannot be cancelled any more: the new "+
				"replica votes and the old one is leaving; move it back afterwards", m.ID, m.Shard)
		}
		if m.Phase != meta.PhaseCancel {
			if err := s.driver.advance(ctx, &m, meta.PhaseCancel); err != nil {
				return nil, fmt.Errorf("cancel move %d of shard %d: %w", m.ID, m.Shard, err)
			}
			m.Phase = meta.PhaseCancel
		}
		s.logger.Info("a move is cancelled", "move", m.ID, "shard", uint32(m.Shard))
		return &rowraftv1.CancelMoveReply{Move: m.ToProto()}, nil
	}
	return nil, rowraft.Errorf(rowraft.CodeNotFound, "no replica of shard %d moves, or none by that move id",
		req.GetShard())
}

// addMoves adds the moves that run, and the last that ended, to a status.
func (d *driver) addMoves(reply *rowraftv1.StatusReply) {
	running, finished := d.machine.Moves()
	for _, m := range running {
		n := d.noteOf(m.ID)
		reply.Moves = append(reply.Moves, &rowraftv1.MoveStatus{Move: m.ToProto(), WaitingFor: n.waitingFor,
			LagEntries: n.lag})
	}
	for _, m := range finished {
		reply.FinishedMoves = append(reply.FinishedMoves, m.ToProto())
	}
}
