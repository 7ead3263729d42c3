package scheduler

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

func sortPaused(list []*paused) {
	slices.SortFunc(list, func(a, b *paused) int { return a.a.id.Compare(b.a.id) })
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
		there := need == "" || slices.ContainsFunc(who, func(a *attendee) bool { return a.id.Job == need })
		for _, id := range absent {
			err := s.absentError(id)
			switch {
			case skip && there:
				s.logger.Warn("a checkpoint goes on without a trainer", "job", id.Job, "rank", id.Rank)
			case id.Job == need:
				return nil, err
			case left[id.Job] == nil:
				s.logger.Warn("a checkpoint leaves a job out: no run of the job can go on from it", "job", id.Job, "err", err)
				left[id.Job] = err
			}
		}
		return slices.DeleteFunc(who, func(a *attendee) bool { return left[a.id.Job] != nil }), nil
	}
}

// absentError says why a checkpoint cannot pause an expected trainer.
func (s *Scheduler) absentError(id meta.TrainerID) error {
	if s.attendance.has(id) {
		return claimedError(id.Job)
	}
	return rowraft.Errorf(rowraft.CodePrecondition,
		"%s is not connected to the scheduler, and its job cannot resume exactly from a checkpoint without its state: start it again, or make the checkpoint without it (--skip-absent)", id)
}

// claimedError is the temporary error of a checkpoint that needs the trainers of a job while another muster has them.
func claimedError(job string) error {
	return rowraft.Errorf(rowraft.CodeNoLeader, "the trainers of job %s are paused for another checkpoint, or are told to stop; try again", job)
}

// rollCall returns the connected trainers and the expected ones that are absent. A connected trainer whose job another
// muster has claimed counts as absent.
func (s *Scheduler) rollCall(need string, left map[string]error) (who []*attendee, absent []meta.TrainerID) {
	out := func(job string) bool { return left[job] != nil || job != need && s.jobWaits(job) }
	who = slices.DeleteFunc(s.attendance.list(), func(a *attendee) bool { return out(a.id.Job) })
	connected := make(map[string]bool)
	for _, a := range who {
		connected[a.id.Job] = true
	}
	// The trainers of a run in which no worker trains may still be about to connect to a new leader.
	young := s.soft.leadsFor() < 2*s.attendance.patience.absent
	ought := make(map[meta.TrainerID]bool)
	for _, r := range s.machine.Runs() {
		if job := r.GetJob(); !out(job) {
			for _, rank := range meta.ExpectedRanks(r, job == need, connected[job] || young) {
				ought[meta.TrainerID{Job: job, Rank: rank}] = true
			}
		}
	}
	if need != "" && !connected[need] {
		ought[meta.TrainerID{Job: need, Rank: 0}] = true
	}
	claimed := s.attendance.allClaimed()
	for _, a := range who {
		if !claimed[a.id.Job] {
			delete(ought, a.id)
		}
	}
	return who, slices.SortedFunc(maps.Keys(ought), meta.TrainerID.Compare)
}

// jobWaits reports whether the workers of a job wait until all of them have entered. None of them trains before that.
func (s *Scheduler) jobWaits(job string) bool {
	r := s.machine.RunOf(job)
	return r != nil && (r.GetGeneration() == 0 || r.GetGathering())
}

// attended describes the trainers of the muster for the reply of CreateCheckpoint.
func (m *muster) attended() (out []*rowraftv1.AttendedTrainer) {
	for _, p := range m.members {
		out = append(out, &rowraftv1.AttendedTrainer{Job: p.a.id.Job, Rank: p.a.id.Rank, Step: p.step, PausedNs: uint64(p.pausedFor), Bytes: p.bytes})
	}
	return out
}

// addTrainers adds the connected trainers and the restored checkpoints to the status.
func (s *Scheduler) addTrainers(reply *rowraftv1.StatusReply) {
	sources, _ := s.machine.Sources()
	for _, from := range sources {
		r := &rowraftv1.RestoredFrom{Id: from.GetId(), Destination: from.GetDestination(), Name: from.GetName()}
		for _, t := range s.view.Map().Tables {
			if slices.Contains(from.GetTables(), uint64(t.ID)) {
				r.Tables = append(r.Tables, t.Name)
			}
		}
		for _, t := range from.GetTrained() {
			r.Trained = append(r.Trained, &rowraftv1.TrainerId{Job: t.GetJob(), Rank: t.GetRank()})
		}
		reply.Restored = append(reply.Restored, r)
	}
	for _, a := range s.attendance.list() {
		reply.Trainers = append(reply.Trainers, &rowraftv1.TrainerId{Job: a.id.Job, Rank: a.id.Rank})
	}
}
