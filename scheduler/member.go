package scheduler

import (
	"context"
	"slices"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// welcomeMember refuses a trainer that is not a member of the run it names, and renews its lease.
func (s *Scheduler) welcomeMember(ctx context.Context, a *attendee) error {
	if _, err := s.leadingInSync(ctx); err != nil { // the trainer may have entered under an earlier leader
		return err
	}
	if err := s.machine.CheckMember(a.member); err != nil {
		return err
	}
	a.trainers = s.machine.RunOf(a.id.Job).GetWorkers()
	s.workers.heard(a.member.GetIncarnation(), nil)
	return nil
}

// tellMember sends the trainer a new generation of its job, or a stop request. It returns an error if the trainer is no
// longer a member.
func (s *Scheduler) tellMember(ctx context.Context, a *attendee) error {
	if err := s.machine.CheckMember(a.member); err != nil {
		s.attendance.mu.Lock()
		defer s.attendance.mu.Unlock()
		if a.park != nil {
			return nil // the trainer has left its job and stays connected for the checkpoints of others
		}
		return err
	}
	r := s.machine.RunOf(a.member.GetJob())
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

// has reports whether generation g may be sent to a rank. A training rank must be a member of g: a worker that returns
// to a stopped job waits for the others, while the current generation is still the empty one.
func (g generation) has(r *rowraftv1.MetaRun, rank uint32) bool {
	i, found := meta.FindMember(r, rank)
	return !found || !meta.IsTraining(r.GetMembers()[i]) || slices.Contains(g.ranks, rank)
}
