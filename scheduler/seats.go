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
	"github.com/rowraft/rowraft/scheduler/diagnosis"
)

// How a member of the scheduler is replaced
//
// A member is called a seat. The founders bootstrap the group, and the number of seats stays the number of founders. A
// server that is started with --with-scheduler and is no founder is a standby: it runs an empty replica that does not
// vote and does not campaign, and it reports that in its heartbeats. The group's configuration alone decides which
// server is a member. The leader changes the configuration in single steps, and a new leader continues:
//
//   - A seat is lost when its server is decommissioned and down. Only an operator decommissions a server, or a
//     server with an empty directory that takes over the name of one that is down. A decommissioned server cannot
//     return (retire_node), and neither can the votes that its disk lost. A founder that never registered cannot
//     be decommissioned: its seat is lost when another server has its address. A seat is also lost when its
//     server reports that the disk of the replica was rolled back: raftstore has proof of that, and the replica
//     has stopped.
//   - A standby becomes a learner, then, after it has caught up, a voter. Then the lost member is removed. If one
//     of three members is down, the group has no spare vote until the last of these steps.
//   - The map's mark of a scheduler follows the configuration, so that other servers find the new member, and the
//     old one can be retired.

// Seats changes the members of the scheduler. Errors are those of raftstore.Group.
type Seats interface {
	Members() (raftstore.Membership, error)
	AddLearner(ctx context.Context, m raftstore.Member, prev rowraft.Index) (raftstore.Membership, error)
	Promote(ctx context.Context, id rowraft.ReplicaID, prev rowraft.Index) (raftstore.Membership, error)
	Remove(ctx context.Context, id rowraft.ReplicaID, prev rowraft.Index) (raftstore.Membership, error)
}

// seatChange is one change of the members. One field is set.
type seatChange struct {
	add             rowraft.NodeID
	promote, remove rowraft.ReplicaID
}

// nextSeat returns the next change for a group with this number of seats; the zero value if there is none. standbys are
// the servers that can take a seat.
func nextSeat(seats int, members []raftstore.MemberStatus, lost func(rowraft.NodeID) bool,
	standbys []rowraft.NodeID) (c seatChange) {
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
	// The lost member is removed only after a standby votes in its place. Without a standby the removal would only make
	// the group smaller than the cluster was formed with.
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

// keepSeats makes the change that nextSeat returns, and updates the marks in the map.
func (pl *placeLoop) keepSeats(ctx context.Context) error {
	l, err := pl.leadingInSync(ctx)
	if err != nil {
		return nil // another member's work
	}
	m := pl.view.Map()
	now, err := l.Members()
	if m == nil || err != nil {
		return err
	}
	c := nextSeat(len(pl.opts.Identity.Identity().Founders), now.Members, pl.lostSeat, pl.standbys(m, &now))
	switch {
	case c.add != "":
		pl.logger.Info("a standby gets the seat of a lost member of the scheduler", "server", m.NameOf(c.add))
		now, err = l.AddLearner(ctx, raftstore.Member{Replica: identity.MetaReplicaOf(c.add), Node: c.add}, now.Index)
	case c.promote != "":
		now, err = l.Promote(ctx, c.promote, now.Index)
	case c.remove != "":
		now, err = l.Remove(ctx, c.remove, now.Index)
	}
	if err != nil {
		return fmt.Errorf("members of the scheduler: %w", err)
	}
	return pl.markSeats(ctx, &now)
}

// lostSeat reports whether the member on a node is to be replaced.
func (pl *placeLoop) lostSeat(id rowraft.NodeID) bool {
	m, l := pl.view.Map(), pl.liveness(id)
	switch {
	// This server leads the group, so its seat is not lost.
	case id == pl.opts.Self.ID:
		return false
	case l.seen && l.state == diagnosis.Up && l.beat.metaRolledBack != "":
		return true
	case l.state != diagnosis.Down:
		return false
	}
	if n, known := m.Node(id); known {
		return n.Intent == clustermap.Decommission
	}
	f, founded := pl.opts.Identity.Identity().FindFounder(id)
	return founded && slices.ContainsFunc(m.Nodes, func(n clustermap.Node) bool { return n.Addr == f.Addr })
}

// standbys returns the servers that can take a seat now, by id.
func (pl *placeLoop) standbys(m *clustermap.Map, now *raftstore.Membership) (out []rowraft.NodeID) {
	for _, n := range m.Nodes {
		v, known := pl.versionOf(n.ID)
		if l := pl.liveness(n.ID); pl.standby(now, &n, &l) && l.state == diagnosis.Up && !l.beat.stopping &&
			n.Intent == clustermap.Serve && known && v >= FormatVersion(m) {
			out = append(out, n.ID)
		}
	}
	return out
}

// standby reports whether a server waits for a seat.
func (pl *placeLoop) standby(now *raftstore.Membership, n *clustermap.Node, l *liveness) bool {
	return l.seen && l.beat.metaReplica && l.beat.metaRolledBack == "" && !now.HasVoter(n.ID)
}

// markSeats updates the marks of schedulers in the map.
func (pl *placeLoop) markSeats(ctx context.Context, now *raftstore.Membership) error {
	if err := pl.registering.Acquire(ctx, 1); err != nil { // or markSeats would undo a concurrent change of an address
		return fmt.Errorf("waiting for another call: %w", err)
	}
	defer pl.registering.Release(1)
	for _, n := range pl.view.Map().Nodes {
		seat := now.HasVoter(n.ID)
		if n.Scheduler == seat || n.NoShards && !pl.lostSeat(n.ID) { // a node without shards has the mark from the start
			continue
		}
		n.Scheduler, n.NoShards = seat, n.NoShards && seat
		if _, err := pl.propose(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_PutNode{
			PutNode: &rowraftv1.MetaPutNode{Node: rpc.NodeToProto(n)}}}); err != nil {
			return fmt.Errorf("members of the scheduler: %w", err)
		}
		pl.logger.Info("the members of the scheduler changed", "server", diagnosis.NodeLabel(rpc.NodeToProto(n)), "member",
			seat)
	}
	return nil
}

// seated returns the nodes of the members of the scheduler's group, including learners. It returns the founders while
// the members are not known.
func (g *group) seated() (out []rowraft.NodeID) {
	if l := g.log.Load(); l != nil {
		if now, err := (*l).Members(); err == nil {
			for _, m := range now.Members {
				out = append(out, m.Node)
			}
			return out
		}
	}
	for _, f := range g.opts.Identity.Identity().Founders {
		out = append(out, f.Node)
	}
	return out
}

// isStandby reports whether this server has a replica of the scheduler's group and is no member.
func (g *group) isStandby() bool {
	return !g.opts.Identity.Identity().Founder() && !slices.Contains(g.seated(), g.opts.Self.ID)
}

// seatLabel returns the name of a member of the scheduler for messages.
func (g *group) seatLabel(id rowraft.NodeID) string {
	if m := g.view.Map(); m != nil {
		if _, known := m.Node(id); known {
			return m.NameOf(id)
		}
	}
	f, _ := g.opts.Identity.Identity().FindFounder(id)
	return cmp.Or(f.Name, string(id))
}
