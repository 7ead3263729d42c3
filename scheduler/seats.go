package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/identity"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
)

// How a member of the metadata group is replaced
//
// The founders bootstrap the group, and there are always as many seats as there were
// founders. A server that is started with --with-scheduler and is no founder is a standby:
// it runs a replica that is empty, has no vote and campaigns for nothing, and says so with
// its heartbeats. Who has a seat is said by the group's configuration alone; the leader
// changes it, one step at a time, and whoever leads next goes on:
//
//   - A seat is lost when its server is decommissioned and down. Nobody else decides that:
//     decommissioned is what an operator said, or a server that came with an empty
//     directory in the place and under the name of the one that is down. It can not come
//     back afterwards (retire_node), and so neither can the votes that its disk forgot. A
//     founder that never registered cannot be decommissioned: its seat is lost when another
//     server has its address. It is lost too when the server says that the disk of its replica
//     was rolled back: raftstore has proof of that, and the replica has stopped.
//   - A standby becomes a learner, when it has caught up a voter, and then the lost one
//     leaves. With one of three away the group has no vote to spare before, between and
//     after these steps, but the last.
//   - The map's mark of who is a scheduler follows the configuration, so that others find
//     the new member, and the old one can be retired.

// Seats are the members of the metadata group. Errors are those of raftstore.Group.
type Seats interface {
	Members() (raftstore.Membership, error)
	AddLearner(ctx context.Context, m raftstore.Member, prev rowraft.Index) (raftstore.Membership, error)
	Promote(ctx context.Context, id rowraft.ReplicaID, prev rowraft.Index) (raftstore.Membership, error)
	Remove(ctx context.Context, id rowraft.ReplicaID, prev rowraft.Index) (raftstore.Membership, error)
}

// seatChange is one change of the members: one of its fields is set.
type seatChange struct {
	add             rowraft.NodeID
	promote, remove rowraft.ReplicaID
}

// nextSeat returns what should change next, if anything, in a group of so many seats.
// standbys may take one.
func nextSeat(seats int, members []raftstore.MemberStatus, lost func(rowraft.NodeID) bool, standbys []rowraft.NodeID) (c seatChange) {
	var learner, gone *raftstore.MemberStatus
	voters := 0
	for i := range members {
		switch m := &members[i]; {
		case !m.Voter:
			learner = m
		case lost(m.Node):
			gone = m
			voters++
		default:
			voters++
		}
	}
	wanted := gone != nil || voters < seats
	switch {
	case gone != nil && voters > seats:
		c.remove = gone.Replica
	case learner != nil && (!wanted || !slices.Contains(standbys, learner.Node)):
		c.remove = learner.Replica
	case learner != nil && learner.CaughtUp:
		c.promote = learner.Replica
	case learner == nil && wanted && len(standbys) > 0:
		c.add = standbys[0]
	}
	return c
}

// keepSeats does what nextSeat wants, and has the map say who has a seat.
func (s *Scheduler) keepSeats(ctx context.Context) error {
	l, err := s.leadingInSync(ctx)
	if err != nil {
		return nil // another member's work
	}
	m := s.view.Map()
	now, err := l.Members()
	if m == nil || err != nil {
		return err
	}
	c := nextSeat(len(s.opts.Identity.Identity().Founders), now.Members, s.lostSeat, s.standbys(m, &now))
	switch {
	case c.add != "":
		s.logger.Info("a standby gets the seat of a lost member of the scheduler", "server", labelOf(m, c.add))
		now, err = l.AddLearner(ctx, raftstore.Member{Replica: identity.MetaReplicaOf(c.add), Node: c.add}, now.Index)
	case c.promote != "":
		now, err = l.Promote(ctx, c.promote, now.Index)
	case c.remove != "":
		now, err = l.Remove(ctx, c.remove, now.Index)
	}
	if err != nil {
		return fmt.Errorf("members of the scheduler: %w", err)
	}
	return s.markSeats(ctx, &now)
}

// lostSeat reports whether the member on a node is to be replaced.
func (s *Scheduler) lostSeat(id rowraft.NodeID) bool {
	m, l := s.view.Map(), s.liveness(id)
	switch {
	case id == s.opts.Self.ID:
		return false
	case l.seen && l.state == stateUp && l.beat.metaRolledBack != "":
		return true
	case l.state != stateDown:
		return false
	}
	if n, known := m.Node(id); known {
		return n.Intent == clustermap.Decommission
	}
	f, founded := s.opts.Identity.Identity().FindFounder(id)
	return founded && slices.ContainsFunc(m.Nodes, func(n clustermap.Node) bool { return n.Addr == f.Addr })
}

// standbys are the servers that could take a seat now, by id.
func (s *Scheduler) standbys(m *clustermap.Map, now *raftstore.Membership) (out []rowraft.NodeID) {
	for _, n := range m.Nodes {
		v, known := s.versionOf(n.ID)
		if l := s.liveness(n.ID); s.standby(now, &n, &l) && l.state == stateUp && !l.beat.stopping && n.Intent == clustermap.Serve && known && v >= FormatVersion(m) {
			out = append(out, n.ID)
		}
	}
	return out
}

// standby reports whether a server waits for a seat.
func (s *Scheduler) standby(now *raftstore.Membership, n *clustermap.Node, l *liveness) bool {
	return l.seen && l.beat.metaReplica && l.beat.metaRolledBack == "" && !now.HasVoter(n.ID)
}

// markSeats corrects the map's marks of who is a scheduler.
func (s *Scheduler) markSeats(ctx context.Context, now *raftstore.Membership) error {
	if err := s.registering.take(ctx); err != nil { // or an address that is just being renewed would be undone
		return err
	}
	defer s.registering.give()
	for _, n := range s.view.Map().Nodes {
		seat := now.HasVoter(n.ID)
		if n.Scheduler == seat || n.NoShards && !s.lostSeat(n.ID) { // a standby that is nothing else is marked from the start
			continue
		}
		n.Scheduler, n.NoShards = seat, n.NoShards && seat
		if err := s.proposeCommand(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_PutNode{PutNode: &rowraftv1.MetaPutNode{Node: rpc.NodeToProto(n)}}}); err != nil {
			return fmt.Errorf("members of the scheduler: %w", err)
		}
		s.logger.Info("the members of the scheduler changed", "server", nodeLabel(rpc.NodeToProto(n)), "member", seat)
	}
	return nil
}

// seated are the nodes in the metadata group, learners too; the founders while that is
// not known.
func (s *Scheduler) seated() (out []rowraft.NodeID) {
	if l := s.log.Load(); l != nil {
		if now, err := (*l).Members(); err == nil {
			for _, m := range now.Members {
				out = append(out, m.Node)
			}
			return out
		}
	}
	for _, f := range s.opts.Identity.Identity().Founders {
		out = append(out, f.Node)
	}
	return out
}

// isStandby reports that this server has a replica of the metadata group and no seat.
func (s *Scheduler) isStandby() bool {
	return !s.opts.Identity.Identity().Founder() && !slices.Contains(s.seated(), s.opts.Self.ID)
}

// seatLabel is what people call a member of the metadata group.
func (s *Scheduler) seatLabel(id rowraft.NodeID) string {
	if m := s.view.Map(); m != nil {
		if _, known := m.Node(id); known {
			return labelOf(m, id)
		}
	}
	f, _ := s.opts.Identity.Identity().FindFounder(id)
	return cmp.Or(f.Name, string(id))
}
