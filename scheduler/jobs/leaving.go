package jobs

import (
	"context"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

const (
	// leavePatience bounds how long a finished trainer waits before it requests a checkpoint: for expected trainers of
	// its job that are absent, and for those that were told to stop.
	leavePatience = 30 * time.Second
	// stopGrace is the delay within which a stop signal reaches all trainers of a job. A trainer whose checkpoint is
	// done stays connected until each other trainer has reported, after this time, that it is not stopping: a trainer
	// that stops needs a checkpoint with the state of all.
	stopGrace = 2 * time.Second
	// endingPatience bounds the retries of the checkpoint of leaving trainers after temporary errors, such as an
	// election.
	endingPatience = 2 * time.Minute
)

// ending is a checkpoint that leaving trainers requested.
type ending struct {
	begun time.Time // trainers that parked by then are in the checkpoint
	over  time.Time
	done  chan struct{}
	leave *rowraftv1.AttendLeave
}

// covers reports whether the checkpoint is finished and includes the state at which a trainer parked.
func (e *ending) covers(parkedAt time.Time) bool {
	if e == nil || parkedAt.IsZero() {
		return false
	}
	select {
	case <-e.done:
		return !e.begun.Before(parkedAt)
	default:
		return false
	}
}

// mayLeave returns the message with which a parked trainer may leave. It returns nil while the trainer trains or must
// wait: for other trainers of its job, or for a checkpoint. mayLeave itself makes that checkpoint.
func (c *Trainers) mayLeave(ctx context.Context, a *trainer) *rowraftv1.AttendLeave {
	t := c.registry
	t.mu.Lock()
	if len(a.sending) > 0 {
		t.mu.Unlock()
		return nil // a checkpoint is storing its state
	}
	park, parkedAt := a.park, a.parkedAt
	last := t.endings[a.id.Job]
	var train []*trainer
	waiting, there := 0, uint32(0) // number of parked trainers whose checkpoint is not made yet
	for _, o := range t.trainers {
		if o.id.Job != a.id.Job {
			continue
		}
		if there++; o.park == nil {
			train = append(train, o)
		} else if o.park.GetDestination() != "" && !last.covers(o.parkedAt) {
			waiting++
		}
	}
	t.mu.Unlock()
	if last.covers(parkedAt) {
		canEnd := func(o *trainer) bool { return c.canEnd(o, last.over) }
		if waiting > 0 || !park.GetEnded() && time.Since(last.over) < c.stopPatience(a) &&
			slices.ContainsFunc(train, canEnd) {
			return nil // their checkpoint needs this trainer's state
		}
		return last.leave
	}
	switch {
	case park == nil:
		return nil
	case park.GetEnded() && (len(train) > 0 || !park.GetSkipAbsent() && c.othersReconnect(a)):
		return nil
	case park.GetDestination() == "":
		return &rowraftv1.AttendLeave{}
	case time.Since(parkedAt) < c.stopPatience(a) && slices.ContainsFunc(train, c.ends):
		return nil // these trainers park soon, and one checkpoint then serves all
	case park.GetEnded() && there < a.trainers && time.Since(parkedAt) < leavePatience && !park.GetSkipAbsent():
		return nil
	}
	leave := c.endingOf(ctx, a, park, parkedAt)
	if leave != nil && leave.GetError() == "" {
		return nil // check again: other trainers may wait for a checkpoint that needs this trainer
	}
	return leave
}

// othersReconnect reports whether other trainers of a's job are not connected, for less than patience.absent: their
// connections broke, or this leader is new. Their checkpoints need the state of a. Only the goroutine of a's call uses
// it.
func (c *Trainers) othersReconnect(a *trainer) bool {
	missing := func(m *rowraftv1.RunMember) bool {
		switch m.GetState() {
		case rowraftv1.MemberState_MEMBER_STATE_LOST, rowraftv1.MemberState_MEMBER_STATE_FAILED:
			return false
		}
		return m.GetAttending() != 0 && !c.has(meta.TrainerID{Job: a.id.Job, Rank: m.GetRank()})
	}
	if !slices.ContainsFunc(c.machine.RunOf(a.id.Job).GetMembers(), missing) {
		a.absent = time.Time{}
		return false
	}
	if a.absent.IsZero() {
		a.absent = time.Now()
	}
	return time.Since(a.absent) < c.patience.absent
}

// endingOf makes the checkpoint that a requests. If another trainer of the job already makes one, endingOf waits for it
// and uses it if it covers a. It returns nil if the caller must try again: the other checkpoint does not cover a, it
// failed with a temporary error, or the call of the trainer that requested it ended.
func (c *Trainers) endingOf(ctx context.Context, a *trainer, park *rowraftv1.AttendPark,
	parkedAt time.Time) *rowraftv1.AttendLeave {
	t := c.registry
	t.mu.Lock()
	e := t.endings[a.id.Job]
	mine := e == nil
	if !mine {
		select {
		case <-e.done: // it does not cover a: mayLeave has checked that
			mine = true
		default:
		}
	}
	if mine {
		e = &ending{done: make(chan struct{})}
		t.endings[a.id.Job] = e
	}
	t.mu.Unlock()
	if !mine {
		select {
		case <-e.done:
		case <-ctx.Done():
		}
		if e.covers(parkedAt) {
			return e.leave
		}
		return nil
	}
	// This goroutine alone writes e until it closes done; the others read after that.
	e.leave = &rowraftv1.AttendLeave{}
	name, err := c.checkpoints.CreateForJob(ctx, a.id.Job, park, func() { e.begun = time.Now() })
	switch {
	case err == nil:
		e.leave.Checkpoint = name
	// The call that made the checkpoint has ended, or the error passes. Another trainer of the job, or this one, tries
	// again.
	case ctx.Err() != nil, passes(err) && time.Since(parkedAt) < endingPatience:
		e.begun, e.leave = time.Time{}, nil // so that it covers no trainer
	default:
		e.leave.Error = err.Error()
	}
	e.over = time.Now()
	close(e.done)
	return e.leave
}

// passes reports whether a checkpoint failed with a temporary error: a server or a trainer was absent at that moment.
func passes(err error) bool {
	switch rowraft.CodeOf(err) {
	case rowraft.CodeNoLeader, rowraft.CodeNotLeader, rowraft.CodeLeadershipLost, rowraft.CodeStarting,
		rowraft.CodeClosing, rowraft.CodeDeadline:
		return true
	}
	return false
}

// ends reports whether a trainer that has not parked will park soon: its job is stopped, it has left, or it has
// reported that it received a stop signal.
func (c *Trainers) ends(a *trainer) bool {
	if a.toldToStop.Load() {
		return true
	}
	if w, known := c.leases.get(a.member.GetIncarnation()); known && w.beat.GetStopping() {
		return true
	}
	r, m := c.machine.MemberOf(a.member)
	return m != nil && (r.GetStopping() || !meta.IsTraining(m))
}

// canEnd reports whether a trainer may have received the stop signal of other trainers, whose checkpoint was finished
// at time over. That is so if it will park soon, or if it has not reported since over + stopGrace that it continues. A
// trainer that reports nothing loses its lease and then its connection.
func (c *Trainers) canEnd(a *trainer, over time.Time) bool {
	told := over.Add(stopGrace)
	if c.ends(a) {
		return true
	}
	w, known := c.leases.get(a.member.GetIncarnation())
	return !known || !w.spoke.After(told)
}

// stopPatience returns how long a stopped trainer waits for the trainers of its job that will park soon.
func (c *Trainers) stopPatience(a *trainer) time.Duration {
	lease := DefaultLease
	if r := c.machine.RunOf(a.id.Job); r != nil {
		lease = time.Duration(r.GetLeaseNs())
	}
	return lease + leavePatience
}
