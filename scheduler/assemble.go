package scheduler

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func sortPaused(list []*paused) {
	slices.SortFunc(list, func(a, b *paused) int { return a.a.id.compare(b.a.id) })
}

// assemble waits until every expected trainer is connected, for at most absentPatience, and returns the connected ones.
// If a trainer of a job other than need stays absent, the job is added to left: the checkpoint leaves it out.
func (s *Scheduler) assemble(ctx context.Context, need string, skip bool, left map[string]error) ([]*attendee, error) {
	patience := time.NewTimer(s.attendance.patience.absent)
	defer patience.Stop()
	for {
		changed := s.attendance.watch()
		who, absent := s.rollCall(need, left)
		if len(absent) == 0 {
			return who, nil
		}
		select {
		case <-changed:
			continue
		case <-patience.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		there := need == "" || slices.ContainsFunc(who, func(a *attendee) bool { return a.id.job == need })
		for _, id := range absent {
			err := rowraft.Errorf(rowraft.CodePrecondition,
				"%s is not here: without its state the job could not go on exactly (--skip-absent makes the checkpoint without it; a job that nobody hears of counts as dead after %v)", id, forgetJobAfter)
			switch {
			case skip && there:
				s.logger.Warn("a checkpoint goes on without a trainer", "job", id.job, "rank", id.rank)
			case id.job == need:
				return nil, err
			case left[id.job] == nil:
				s.logger.Warn("a checkpoint leaves a job out: no run of the job can go on from it", "job", id.job, "err", err)
				left[id.job] = err
			}
		}
		return slices.DeleteFunc(who, func(a *attendee) bool { return left[a.id.job] != nil }), nil
	}
}

// rollCall returns the connected trainers and the expected ones that are absent. The cluster expects a trainer that, by
// the log, has begun and not left. It expects all ranks of need, which must be in the checkpoint. It does not expect a
// trainer that another worker may replace, nor one of a job that still waits for its first trainers: such a job has
// pushed nothing yet.
func (s *Scheduler) rollCall(need string, left map[string]error) (who []*attendee, absent []trainerID) {
	out := func(job string) bool { return left[job] != nil || job != need && s.jobWaits(job) }
	who = slices.DeleteFunc(s.attendance.list(), func(a *attendee) bool { return out(a.id.job) })
	ought := make(map[trainerID]bool)
	for _, a := range who {
		for rank := range a.trainers {
			if a.id.job == need {
				ought[trainerID{a.id.job, rank}] = true
			}
		}
	}
	for _, t := range s.machine.atWork() {
		if id := idOf(t); !out(id.job) && !s.dead(id.job) {
			ought[id] = true
		}
	}
	for _, id := range s.replaceable() {
		delete(ought, id)
	}
	if need != "" && !slices.ContainsFunc(who, func(a *attendee) bool { return a.id.job == need }) {
		ought[trainerID{need, 0}] = true
	}
	claimed := s.attendance.allClaimed()
	for _, a := range who {
		if !claimed[a.id.job] {
			delete(ought, a.id)
		}
	}
	return who, slices.SortedFunc(maps.Keys(ought), trainerID.compare)
}

// jobWaits reports whether the workers of a job wait until all of them have entered. None of them trains before that.
func (s *Scheduler) jobWaits(job string) bool {
	r := s.machine.runOf(job)
	return r != nil && (r.GetGeneration() == 0 || r.GetGathering())
}

// replaceable returns the lost and failed trainers of jobs whose data the scheduler assigns. The other workers read
// their data parts, and a replacement starts from the shared state, so a checkpoint does not need these trainers.
func (s *Scheduler) replaceable() (out []trainerID) {
	for _, r := range s.machine.allRuns() {
		for _, m := range r.GetMembers() {
			lost := m.GetState() == rowraftv1.MemberState_MEMBER_STATE_LOST || m.GetState() == rowraftv1.MemberState_MEMBER_STATE_FAILED
			if lost && r.GetData().GetExamples() > 0 {
				out = append(out, trainerID{r.GetJob(), m.GetRank()})
			}
		}
	}
	return out
}

// dead reports whether no trainer of the job has been connected for forgetJobAfter, counted from the start of this
// leader at the earliest.
func (s *Scheduler) dead(job string) bool {
	since := s.leadsSince()
	s.attendance.mu.Lock()
	defer s.attendance.mu.Unlock()
	for id := range s.attendance.trainers {
		if id.job == job {
			return false
		}
	}
	if last, ok := s.attendance.heard[job]; ok && last.After(since) {
		since = last
	}
	return time.Since(since) > forgetJobAfter
}

// leadsSince returns when this server began to lead the metadata group.
func (s *Scheduler) leadsSince() time.Time {
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	return s.soft.since
}

// attended describes the trainers of the muster for the reply of CreateCheckpoint.
func (m *muster) attended() (out []*rowraftv1.AttendedTrainer) {
	for _, p := range m.members {
		out = append(out, &rowraftv1.AttendedTrainer{Job: p.a.id.job, Rank: p.a.id.rank, Step: p.step, PausedNs: uint64(p.pausedFor), Bytes: p.bytes})
	}
	return out
}

// forgetDead logs that the trainers of dead jobs have left.
func (s *Scheduler) forgetDead(ctx context.Context) error {
	for _, t := range s.machine.atWork() {
		if id := idOf(t); s.dead(id.job) {
			if err := s.logLeave(ctx, id, t.GetInstance()); err != nil {
				return err
			}
			s.logger.Info("nothing was heard of a trainer, and of its job, for long: it does not count any more", "job", id.job, "rank", id.rank)
		}
	}
	return nil
}

// addTrainers adds the trainers and the restored checkpoints to the status.
func (s *Scheduler) addTrainers(reply *rowraftv1.StatusReply) {
	sources, _ := s.machine.restored()
	for _, from := range sources {
		r := &rowraftv1.RestoredFrom{Id: from.GetId(), Destination: from.GetDestination(), Name: from.GetName()}
		for _, t := range s.view.Map().Tables {
			if slices.Contains(from.GetTables(), uint64(t.ID)) {
				r.Tables = append(r.Tables, t.Name)
			}
		}
		reply.Restored = append(reply.Restored, r)
	}
	there := make(map[trainerID]bool)
	for _, a := range s.attendance.list() {
		there[a.id] = true
	}
	for _, t := range s.machine.allTrainers() {
		reply.Trainers = append(reply.Trainers, &rowraftv1.TrainerStatus{
			Job: t.GetJob(), Rank: t.GetRank(), Trainers: t.GetTrainers(), Left: t.GetLeft(), Connected: there[idOf(t)],
		})
	}
}
