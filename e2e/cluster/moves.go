package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
)

// Move is how far a replica has moved. Servers are named.
type Move struct {
	ID         uint64
	Shard      rowraft.ShardID
	From, To   string
	Phase      string // as in `rowraft shard moves`
	Ended      bool
	WaitingFor string
}

// Done reports that the move ended with the replica at its new place.
func (m *Move) Done() bool { return m.Ended && m.Phase == rowraftv1.MovePhase_MOVE_PHASE_DONE.String() }

// onScheduler calls fn on every server until one is the leader of the
// scheduler, or ctx ends.
func (a Admins) onScheduler(ctx context.Context, fn func(context.Context, rowraftv1.ClusterClient) error) error {
	var refused error // by the leader, for good
	err := Poll(ctx, func() error {
		var errs []error
		for _, name := range slices.Sorted(maps.Keys(a)) {
			attempt, cancel := context.WithTimeout(ctx, time.Second)
			err := fn(attempt, rowraftv1.NewClusterClient(a[name]))
			cancel()
			if err == nil {
				return nil
			}
			if !rowraft.CodeOf(err).Retryable() {
				refused = err
				return nil
			}
			errs = append(errs, fmt.Errorf("server %s: %w", name, err))
		}
		return errors.Join(errs...)
	})
	return errors.Join(err, refused)
}

// StartMove begins to move a replica, past the proxies. A move that began in a try whose answer
// was lost is the one.
func (a Admins) StartMove(ctx context.Context, shard rowraft.ShardID, from, to string) (id uint64, err error) {
	before, err := a.Placement(ctx)
	if err != nil {
		return 0, err
	}
	err = a.onScheduler(ctx, func(ctx context.Context, s rowraftv1.ClusterClient) error {
		reply, err := s.MoveReplica(ctx, &rowraftv1.MoveReplicaRequest{Shard: uint32(shard), FromNode: from, ToNode: to})
		id = reply.GetMove().GetId()
		return err
	})
	if err == nil {
		return id, nil
	}
	now, lost := a.Placement(ctx)
	if lost != nil {
		return 0, errors.Join(err, lost)
	}
	for _, m := range now.Moves {
		known := slices.ContainsFunc(before.Moves, func(o Move) bool { return o.ID == m.ID })
		if !known && m.Shard == shard && m.From == from && m.To == to {
			return m.ID, nil
		}
	}
	return 0, err
}

// CancelMove turns a move back, if it is not too late.
func (a Admins) CancelMove(ctx context.Context, shard rowraft.ShardID, id uint64) error {
	return a.onScheduler(ctx, func(ctx context.Context, s rowraftv1.ClusterClient) error {
		_, err := s.CancelMove(ctx, &rowraftv1.CancelMoveRequest{Shard: uint32(shard), MoveId: id})
		return err
	})
}

// Placement is where the scheduler says that things are.
type Placement struct {
	Scheduler string                       // the server that leads it
	Replicas  map[rowraft.ShardID][]string // servers of the replicas with a vote
	Moves     []Move                       // those that ended, then those that run
	// RolledBack are the shards whose replica on a server was refused: its disk was rolled back.
	RolledBack map[string][]rowraft.ShardID
}

// Placement asks the scheduler.
func (a Admins) Placement(ctx context.Context) (*Placement, error) {
	var st *rowraftv1.StatusReply
	err := a.onScheduler(ctx, func(ctx context.Context, s rowraftv1.ClusterClient) (err error) {
		st, err = s.Status(ctx, &rowraftv1.StatusRequest{})
		return err
	})
	if err != nil {
		return nil, err
	}
	p := &Placement{Replicas: make(map[rowraft.ShardID][]string), RolledBack: make(map[string][]rowraft.ShardID)}
	names := make(map[string]string)
	for _, n := range st.Nodes {
		names[n.Node.Id] = n.Node.Name
		if n.MetadataLeader {
			p.Scheduler = n.Node.Name
		}
		for _, r := range n.Replicas {
			if strings.Contains(r.Fenced, raftstore.RolledBack) {
				p.RolledBack[n.Node.Name] = append(p.RolledBack[n.Node.Name], rowraft.ShardID(r.Shard))
			}
		}
	}
	for _, sh := range st.Map.Shards {
		for _, r := range sh.Replicas {
			p.Replicas[rowraft.ShardID(sh.Id)] = append(p.Replicas[rowraft.ShardID(sh.Id)], names[r.Node])
		}
	}
	add := func(m *rowraftv1.Move, waitingFor string) {
		ended := m.Phase == rowraftv1.MovePhase_MOVE_PHASE_DONE || m.Phase == rowraftv1.MovePhase_MOVE_PHASE_CANCELLED
		p.Moves = append(p.Moves, Move{
			ID: m.Id, Shard: rowraft.ShardID(m.Shard), From: names[m.GetFrom().GetNode()], To: names[m.GetTo().GetNode()],
			Phase: m.Phase.String(), Ended: ended, WaitingFor: waitingFor,
		})
	}
	for _, m := range st.FinishedMoves {
		add(m, "")
	}
	for _, m := range st.Moves {
		add(m.Move, m.WaitingFor)
	}
	return p, nil
}

// whole reports whether no replica moves or waits for its replacement, and each shard has as many as it should.
func (p *Placement) whole(replicas int) bool {
	for _, has := range p.Replicas {
		if len(has) < replicas {
			return false
		}
	}
	return len(p.RolledBack) == 0 && !slices.ContainsFunc(p.Moves, func(m Move) bool { return !m.Ended })
}

// AwaitWhole waits until no replica moves or waits for its replacement, and each shard has so many.
func (a Admins) AwaitWhole(ctx context.Context, replicas int) error {
	return Poll(ctx, func() error {
		p, err := a.Placement(ctx)
		if err == nil && !p.whole(replicas) {
			err = fmt.Errorf("the replicas are not all in their places: %+v", *p)
		}
		return err
	})
}

// AwaitMove waits until a move has ended.
func (a Admins) AwaitMove(ctx context.Context, id uint64) (m Move, err error) {
	err = Poll(ctx, func() error {
		p, err := a.Placement(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(p.Moves, func(m Move) bool { return m.ID == id })
		if i < 0 {
			return fmt.Errorf("move %d is unknown", id)
		}
		if m = p.Moves[i]; !m.Ended {
			return fmt.Errorf("move %d is in phase %s: %s", id, m.Phase, m.WaitingFor)
		}
		return nil
	})
	return m, err
}
