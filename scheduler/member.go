package scheduler

import (
	"context"
	"slices"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// welcomeMember refuses a trainer that is not, or no more, a member of its job.
func (s *Scheduler) welcomeMember(ctx context.Context, a *attendee) error {
	if a.member == nil {
		return nil
	}
	if a.member.GetJob() != a.id.job || a.member.GetRank() != a.id.rank {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s calls as rank %d of job %s", a.id, a.member.GetRank(), a.member.GetJob())
	}
	if _, err := s.leadingInSync(ctx); err != nil { // it may have entered under an earlier leader
		return err
	}
	if err := s.machine.isMember(a.member); err != nil {
		return err
	}
	s.workers.heard(a.member.GetIncarnation(), nil)
	return nil
}

// tellMember tells a trainer what is new in its job. It fails for one that is not a
// member any more.
func (s *Scheduler) tellMember(ctx context.Context, a *attendee) error {
	if a.member == nil {
		return nil
	}
	if err := s.machine.isMember(a.member); err != nil {
		s.attendance.mu.Lock()
		defer s.attendance.mu.Unlock()
		if a.park != nil {
			return nil // it has left, and is here for others' checkpoints
		}
		return err
	}
	r := s.machine.runOf(a.member.GetJob())
	if g := s.generations.of(a.member.GetRun()); g.number > a.told && g.has(r, a.member.GetRank()) {
		a.told = g.number
		err := a.tell(&rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Members{Members: &rowraftv1.AttendMembers{
			Generation: g.number, Ranks: g.ranks, FirstStep: g.firstStep,
		}}})
		if err != nil {
			return err
		}
	}
	if r.GetStopping() && !a.toldToStop.Load() && s.mayStop(ctx, a, r) {
		return a.stop()
	}
	return nil
}

// has says whether a generation may be told to a rank: to one that trains only if it is a
// member of it. Who comes back to a stopped job first waits for the others, while the
// generation in which nobody was left is still the present one.
func (g generation) has(r *rowraftv1.MetaRun, rank uint32) bool {
	i, found := memberAt(r, rank)
	return !found || !training(r.GetMembers()[i]) || slices.Contains(g.ranks, rank)
}
