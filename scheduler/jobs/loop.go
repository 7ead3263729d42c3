package jobs

import (
	"context"
	"fmt"
	"time"

	"github.com/rowraft/rowraft/internal/histogram"
	"github.com/rowraft/rowraft/internal/ticks"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// unattendedLease bounds the lease of a worker whose job has not called Attend. Such a worker renews every second.
const unattendedLease = time.Minute

// loopInterval is the interval between two checks of the leases.
const loopInterval = 250 * time.Millisecond

// wake starts the next round of Run at once.
func (s *Service) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// Rounds returns the times of the rounds of Run on the leader.
func (s *Service) Rounds() *histogram.Durations { return &s.rounds }

// Run is the control loop of jobs. While this member leads the scheduler, the loop removes silent workers from
// their jobs and sends each new generation to the shards. It returns when ctx ends.
func (s *Service) Run(ctx context.Context) {
	tick := ticks.New(loopInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.kick:
		}
		if err := s.lead.InSync(ctx); err != nil {
			continue // another member leads, or this one has not applied all earlier entries yet
		}
		s.round(ctx)
	}
}

// round is one round of Run.
func (s *Service) round(ctx context.Context) {
	term, err := s.lead.Leading()
	if err != nil {
		return
	}
	begun := time.Now()
	defer func() { s.rounds.Observe(time.Since(begun)) }()
	s.leases.startTerm(term)
	s.generations.startTerm(term)
	present := make(map[uint64]bool)
	for _, r := range s.machine.Runs() {
		for _, m := range r.GetMembers() {
			if !meta.IsTraining(m) {
				continue
			}
			present[m.GetIncarnation()] = true
			if err := s.checkLease(ctx, r, m); err != nil && ctx.Err() == nil {
				s.logger.Warn("a silent worker could not be taken out of its job", "job", r.GetJob(), "worker", m.GetWorker(),
					"err", err)
			}
		}
	}
	// Leases of members that have left would stay forever: each incarnation is new.
	s.leases.keep(present)
	s.generations.round(ctx)
	s.forgetIdle(ctx)
	s.trainers.wake() // each call checks for a message to its trainer
}

// checkLease removes a member from its job if the member's lease has expired.
func (s *Service) checkLease(ctx context.Context, r *rowraftv1.MetaRun, m *rowraftv1.RunMember) error {
	lease := time.Duration(r.GetLeaseNs())
	if !r.GetAttended() {
		lease = min(lease, unattendedLease)
	}
	// Immediately before the silence is read: a process that was suspended heard nothing, although the worker sent its
	// beats.
	s.lead.CheckPause()
	silence, beat := s.leases.silence(m.GetIncarnation())
	if silence < lease {
		return nil
	}
	reason := fmt.Sprintf("it was silent for %v, and its lease is %v", silence.Round(100*time.Millisecond), lease)
	id := &rowraftv1.JobIdentity{Job: r.GetJob(), Run: r.GetRun(), Rank: m.GetRank(), Incarnation: m.GetIncarnation()}
	return s.leave(ctx, &rowraftv1.MetaLeaveJob{Identity: id, State: rowraftv1.MemberState_MEMBER_STATE_LOST,
		Reason: reason, Splits: beat.GetSplits(), Steps: beat.GetStep()})
}

// forgetIdle deletes the expired runs from the registry.
func (s *Service) forgetIdle(ctx context.Context) {
	now := uint64(time.Now().UnixNano())
	for _, r := range s.machine.Runs() {
		if !meta.IsExpired(r, now) {
			continue
		}
		err := s.lead.Propose(ctx,
			&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_ForgetJob{ForgetJob: &rowraftv1.MetaForgetJob{Job: r.GetJob(),
				Run: r.GetRun()}}})
		if err != nil {
			return // the next round tries again
		}
		s.logger.Info("a job without training workers is forgotten", "job", r.GetJob(), "state", r.GetState().String())
	}
}
