package scheduler

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	// haltPatience is how long the trainers of a job that is stopped may take to stand at one
	// boundary: one of them may have to be found dead first. After that each ends where it is.
	haltPatience = 40 * time.Second
	haltRetry    = 200 * time.Millisecond
)

// halt is what is done to stop the trainers of a run at one boundary.
type halt struct {
	who  []uint64 // incarnations of the trainers that there were
	over bool     // each may be told to stop by itself
}

// mayStop says whether a trainer of a run that is stopped may be told so. Those who wait for each other
// are brought to one boundary before, and told there, all of them, by the call of the first that asks: else each
// would end behind another step, and a checkpoint of where they end be none to go on from exactly.
func (s *Scheduler) mayStop(ctx context.Context, a *attendee, r *rowraftv1.MetaRun) bool {
	who := trainingIncarnations(r)
	if !a.announces || r.GetGeneration() == 0 || r.GetGathering() || len(who) < 2 {
		return true
	}
	t := s.attendance
	t.mu.Lock()
	h := t.halts[a.id.job]
	mine := h == nil || !slices.Contains(h.who, a.member.GetIncarnation()) // else a stop before this one
	if mine {
		h = &halt{who: who}
		t.halts[a.id.job] = h
	}
	over := h.over
	t.mu.Unlock()
	if !mine {
		return over
	}
	err := s.haltTogether(ctx, r)
	if err != nil {
		s.logger.Warn("the trainers of a job that is stopped do not stand at one step: each ends where it is", "job", a.id.job, "err", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.over = true; ctx.Err() != nil && err != nil && t.halts[a.id.job] == h {
		delete(t.halts, a.id.job) // the call of another trainer does it
	}
	return true
}

// haltTogether brings the trainers of a run to one boundary and tells them to stop there. No checkpoint pauses them
// meanwhile: it would let those continue that are not told yet.
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
	now := s.machine.runOf(r.GetJob())
	if !bytes.Equal(now.GetRun(), r.GetRun()) || !now.GetStopping() {
		return nil // it has stopped
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
		_ = p.a.stop() // one that has gone is told when it is back
	}
	s.logger.Info("the trainers of a job stop at one step", "job", now.GetJob(), "trainers", len(m.members), "boundary", m.members[0].boundary)
	return nil
}

// trainersOf are those who train in a run, if all of them are here.
func (s *Scheduler) trainersOf(r *rowraftv1.MetaRun) (out []*attendee) {
	who := trainingIncarnations(r)
	for _, a := range s.attendance.list() {
		if a.member != nil && slices.Contains(who, a.member.GetIncarnation()) {
			out = append(out, a)
		}
	}
	if len(out) < len(who) {
		return nil
	}
	return out
}

// trainingIncarnations are those of the members of the present generation; no other member, of whatever job, has one of them.
func trainingIncarnations(r *rowraftv1.MetaRun) (out []uint64) {
	for _, m := range r.GetMembers() {
		if training(m) {
			out = append(out, m.GetIncarnation())
		}
	}
	return out
}

// stop tells the trainer once that its job is stopped.
func (a *attendee) stop() error {
	if a.toldToStop.Swap(true) {
		return nil
	}
	return a.tell(&rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Stop{Stop: &rowraftv1.AttendStop{}}})
}

// ends says whether a trainer that has not parked is about to: its job is stopped, it has left, or it has said that it
// was told to stop.
func (s *Scheduler) ends(a *attendee) bool {
	if a.toldToStop.Load() {
		return true
	}
	if a.member == nil {
		return false
	}
	if w, known := s.workers.get(a.member.GetIncarnation()); known && w.beat.GetStopping() {
		return true
	}
	r, m := s.machine.memberOf(a.member)
	return m != nil && (r.GetStopping() || !training(m))
}

// mayEnd says whether a trainer may have been told to stop with others whose checkpoint was over at a moment: it is about to
// end, or has not said since that it is not. One that says nothing any more loses its lease, and its place here.
func (s *Scheduler) mayEnd(a *attendee, over time.Time) bool {
	told := over.Add(stopGrace)
	switch {
	case s.ends(a):
		return true
	case a.member == nil: // it says nothing of itself
		return time.Now().Before(told)
	}
	w, known := s.workers.get(a.member.GetIncarnation())
	return !known || !w.spoke.After(told)
}

// stopPatience is how long a trainer that was told to stop waits for those of its job that are about to end.
func (s *Scheduler) stopPatience(a *attendee) time.Duration {
	lease := DefaultLease
	if r := s.machine.runOf(a.id.job); r != nil {
		lease = time.Duration(r.GetLeaseNs())
	}
	return lease + leavePatience
}
