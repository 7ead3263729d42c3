package scheduler

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

const (
	// haltPatience bounds how long the trainers of a stopped job may take to stop at one boundary: a dead trainer has
	// to be detected first. After that each trainer stops at its own step.
	haltPatience = 40 * time.Second
	haltRetry    = 200 * time.Millisecond
)

// halt is the stop of the trainers of a run at one boundary.
type halt struct {
	who  []uint64 // incarnations of the trainers at the start of the stop
	over bool     // each trainer may be told to stop on its own
}

// mayStop reports whether a trainer of a stopped run may be told to stop now. Trainers that synchronize must stop at
// one boundary: otherwise each stops after another step, and no run can resume exactly from a checkpoint of these
// states. The call of the first trainer that asks pauses all of them at one boundary and tells all of them to stop.
func (s *Scheduler) mayStop(ctx context.Context, a *attendee, r *rowraftv1.MetaRun) bool {
	who := trainingIncarnations(r)
	if !a.announces || r.GetGeneration() == 0 || r.GetGathering() || len(who) < 2 {
		return true
	}
	t := s.attendance
	t.mu.Lock()
	h := t.halts[a.id.Job]
	mine := h == nil || !slices.Contains(h.who, a.member.GetIncarnation()) // otherwise h is of an earlier stop
	if mine {
		h = &halt{who: who}
		t.halts[a.id.Job] = h
	}
	over := h.over
	t.mu.Unlock()
	if !mine {
		return over
	}
	err := s.haltTogether(ctx, r)
	if err != nil {
		s.logger.Warn("the trainers of a job that is stopped do not stand at one step: each ends where it is", "job", a.id.Job, "err", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.over = true; ctx.Err() != nil && err != nil && t.halts[a.id.Job] == h {
		delete(t.halts, a.id.Job) // the call of another trainer tries again
	}
	return true
}

// haltTogether pauses the trainers of a run at one boundary and tells them to stop there. It claims the job, so that no
// checkpoint pauses them at the same time: the checkpoint would let trainers continue that are not told yet.
func (s *Scheduler) haltTogether(ctx context.Context, r *rowraftv1.MetaRun) error {
	ctx, cancel := context.WithTimeout(ctx, haltPatience)
	defer cancel()
	for {
		err := s.haltOnce(ctx, r)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(haltRetry):
		case <-ctx.Done():
			return err
		}
	}
}

func (s *Scheduler) haltOnce(ctx context.Context, r *rowraftv1.MetaRun) error {
	now := s.machine.RunOf(r.GetJob())
	if !bytes.Equal(now.GetRun(), r.GetRun()) || !now.GetStopping() {
		return nil // the run has stopped
	}
	if s.generations.of(now.GetRun()).number != now.GetGeneration() {
		return rowraft.Errorf(rowraft.CodeStarting, "generation %d of job %s is not in the shards", now.GetGeneration(), now.GetJob())
	}
	who := s.trainersOf(now)
	if who == nil {
		return rowraft.Errorf(rowraft.CodeNoLeader, "not all trainers of job %s are here", now.GetJob())
	}
	m := s.newMuster(now.GetJob(), make(map[string]error))
	defer m.end()
	if err := m.stop(ctx, who); err != nil {
		m.letGo()
		return err
	}
	for _, p := range m.members {
		_ = p.a.stop() // a trainer that disconnected is told when it reconnects
	}
	s.logger.Info("the trainers of a job stop at one step", "job", now.GetJob(), "trainers", len(m.members), "boundary", m.members[0].boundary)
	return nil
}

// trainersOf returns the training members of a run if all of them are connected, otherwise nil.
func (s *Scheduler) trainersOf(r *rowraftv1.MetaRun) (out []*attendee) {
	who := trainingIncarnations(r)
	for _, a := range s.attendance.list() {
		if slices.Contains(who, a.member.GetIncarnation()) {
			out = append(out, a)
		}
	}
	if len(out) < len(who) {
		return nil
	}
	return out
}

// trainingIncarnations returns the incarnations of the present generation. An incarnation is unique across all jobs.
func trainingIncarnations(r *rowraftv1.MetaRun) (out []uint64) {
	for _, m := range r.GetMembers() {
		if meta.IsTraining(m) {
			out = append(out, m.GetIncarnation())
		}
	}
	return out
}

// stop tells the trainer, at most once, that its job is stopped.
func (a *attendee) stop() error {
	if a.toldToStop.Swap(true) {
		return nil
	}
	return a.tell(&rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Stop{Stop: &rowraftv1.AttendStop{}}})
}

// ends reports whether a trainer that has not parked will park soon: its job is stopped, it has left, or it has
// reported that it received a stop signal.
func (s *Scheduler) ends(a *attendee) bool {
	if a.toldToStop.Load() {
		return true
	}
	if w, known := s.workers.get(a.member.GetIncarnation()); known && w.beat.GetStopping() {
		return true
	}
	r, m := s.machine.MemberOf(a.member)
	return m != nil && (r.GetStopping() || !meta.IsTraining(m))
}

// mayEnd reports whether a trainer may have received the stop signal of other trainers, whose checkpoint was finished
// at time over. That is so if it will park soon, or if it has not reported since over + stopGrace that it continues. A
// trainer that reports nothing loses its lease and then its place in attendance.
func (s *Scheduler) mayEnd(a *attendee, over time.Time) bool {
	told := over.Add(stopGrace)
	if s.ends(a) {
		return true
	}
	w, known := s.workers.get(a.member.GetIncarnation())
	return !known || !w.spoke.After(told)
}

// stopPatience returns how long a stopped trainer waits for the trainers of its job that will park soon.
func (s *Scheduler) stopPatience(a *attendee) time.Duration {
	lease := DefaultLease
	if r := s.machine.RunOf(a.id.Job); r != nil {
		lease = time.Duration(r.GetLeaseNs())
	}
	return lease + leavePatience
}
