package scheduler

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

const (
	attendBeat = 500 * time.Millisecond
	// tellPatience bounds how long a message to a trainer waits until the trainer has read the messages before it.
	tellPatience = 5 * time.Second
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
	// maxDestinations bounds the destinations in a trainer's first message. The scheduler checks each one against a
	// disk.
	maxDestinations = 8
)

// attendance holds the trainers that are connected to this leader. The log holds the members whose state checkpoints
// need (attendstate.go).
type attendance struct {
	patience patience // the constants, except in tests

	mu        sync.Mutex
	trainers  map[meta.TrainerID]*attendee
	endings   map[string]*ending // by job: the newest checkpoint of leaving trainers
	halts     map[string]*halt   // by job: the newest stop request
	claimed   map[string]bool    // jobs whose trainers are paused by a muster
	changed   chan struct{}      // closed and replaced at each change
	lastPause uint64
}

func newAttendance() *attendance {
	return &attendance{
		patience: patience{absent: absentPatience, pause: pausePatience, ignored: ignoredPatience, quick: quickPatience, announce: announcePatience, release: releasePatience, state: statePatience},
		trainers: make(map[meta.TrainerID]*attendee), endings: make(map[string]*ending), halts: make(map[string]*halt), claimed: make(map[string]bool), changed: make(chan struct{}),
	}
}

// attendee is one connected trainer: one call of Attend.
type attendee struct {
	id        meta.TrainerID
	member    *rowraftv1.JobIdentity
	trainers  uint32 // number of trainers of its job
	announces bool   // the trainer agrees on a common boundary with the others of its job
	caller    *rpc.Caller
	gone      chan struct{} // closed when the call ends
	replaced  chan struct{} // closed when another call of a trainer with this rank begins

	send struct {
		mutex  *semaphore.Weighted // of 1, held while a message is sent; its waiters honour their context
		stream grpc.BidiStreamingServer[rowraftv1.AttendRequest, rowraftv1.AttendReply]
	}
	pause atomic.Pointer[paused] // the current pause, which receives the trainer's answers

	// The fields below are guarded by attendance.mu.
	park     *rowraftv1.AttendPark // nil while the trainer trains
	parkedAt time.Time
	stood    bool               // it reached a boundary at the last pause; false also if it was never paused
	ignored  bool               // it did not answer the last pause in time
	took     time.Duration      // duration of the last pause, until the trainer stopped or the scheduler gave up
	sending  map[uint64]*paused // pauses to which the trainer still sends its state, by pause id

	told       uint64 // last generation sent to the trainer; only the goroutine of Checkpoints.serve uses it
	toldToStop atomic.Bool
}

// tell sends a message to the trainer. It waits at most tellPatience for a trainer that does not read; the caller then
// ends the call.
func (a *attendee) tell(r *rowraftv1.AttendReply) error {
	ctx, cancel := context.WithTimeout(context.Background(), tellPatience)
	defer cancel()
	if a.send.mutex.Acquire(ctx, 1) != nil {
		return rowraft.Errorf(rowraft.CodeDeadline, "%s has read nothing for %v", a.id, tellPatience)
	}
	sent := make(chan error, 1)
	go func() { // ends with the call at the latest
		defer a.send.mutex.Release(1)
		sent <- a.send.stream.Send(r)
	}()
	select {
	case err := <-sent:
		return err
	case <-ctx.Done():
		return rowraft.Errorf(rowraft.CodeDeadline, "%s has read nothing for %v", a.id, tellPatience)
	}
}

// watch returns a channel that is closed at the next change. Call it before you read the state, or you miss a change.
func (t *attendance) watch() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

func (t *attendance) changeLocked() {
	close(t.changed)
	t.changed = make(chan struct{})
}

func (t *attendance) add(a *attendee) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.trainers[a.id]; old != nil {
		close(old.replaced)
	}
	t.trainers[a.id] = a
	t.changeLocked()
}

// remove deletes the trainer from the list. A second call does nothing.
func (t *attendance) remove(a *attendee) {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-a.gone:
		return
	default:
		close(a.gone)
	}
	if t.trainers[a.id] == a {
		delete(t.trainers, a.id)
		t.changeLocked()
	}
}

// find returns the connected trainer of a member, nil if there is none.
func (t *attendance) find(member *rowraftv1.JobIdentity) *attendee {
	t.mu.Lock()
	defer t.mu.Unlock()
	// The id of the run is the secret here: an incarnation can be guessed.
	a := t.trainers[meta.TrainerID{Job: member.GetJob(), Rank: member.GetRank()}]
	if a != nil && a.member.GetIncarnation() == member.GetIncarnation() && bytes.Equal(a.member.GetRun(), member.GetRun()) {
		return a
	}
	return nil
}

// has reports whether a trainer is connected.
func (t *attendance) has(id meta.TrainerID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.trainers[id] != nil
}

// claim reserves the trainers of a job for one muster, because a trainer answers one pause at a time. It returns false
// if another muster has them.
func (t *attendance) claim(job string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.claimed[job] {
		return false
	}
	t.claimed[job] = true
	return true
}

// unclaim releases a claim.
func (t *attendance) unclaim(job string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.claimed, job)
	t.changeLocked()
}

// allClaimed returns the jobs with a claim.
func (t *attendance) allClaimed() map[string]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.claimed)
}

// list returns the connected trainers, ordered by job and rank.
func (t *attendance) list() (out []*attendee) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range t.trainers {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *attendee) int { return a.id.Compare(b.id) })
	return out
}

// Attend serves one trainer. It returns when the trainer leaves, its call breaks, or this server loses the leadership
// of the metadata group.
func (c *trainers) Attend(stream grpc.BidiStreamingServer[rowraftv1.AttendRequest, rowraftv1.AttendReply]) error {
	_, term, err := c.s.leading()
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	id := meta.TrainerID{Job: hello.GetMember().GetJob(), Rank: hello.GetMember().GetRank()}
	if id.Job == "" {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "the first message of Attend must name the member of a job: enter a job first")
	}
	if err := c.s.jobs.checkOwner(stream.Context(), id.Job); err != nil {
		return err
	}
	if n := len(hello.GetDestinations()); n > maxDestinations {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s names %d checkpoint destinations, at most %d", id, n, maxDestinations)
	}
	for _, d := range hello.GetDestinations() { // check now, not at the end of the training
		if err := c.s.checkpoints.CheckDestination(stream.Context(), rpc.CallerOf(stream.Context()), d); err != nil {
			return err
		}
	}
	a := &attendee{
		id: id, member: hello.GetMember(), announces: hello.GetAnnounces(), caller: rpc.CallerOf(stream.Context()),
		gone: make(chan struct{}), replaced: make(chan struct{}),
	}
	if err := c.s.welcomeMember(stream.Context(), a); err != nil {
		return err
	}
	a.send.stream, a.send.mutex = stream, semaphore.NewWeighted(1)
	if err := c.s.logAttend(stream.Context(), hello); err != nil {
		return err
	}
	c.s.attendance.add(a)
	defer c.s.attendance.remove(a)
	if err := a.tell(c.s.welcome()); err != nil {
		return err
	}
	// The goroutine ends just after this function returns: gRPC then ends the call, and with it Recv.
	broken := make(chan error, 1)
	go func() { broken <- c.s.listen(a) }()
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { c.s.beat(ctx, cancel, a, term) })
	err = c.serve(ctx, a, broken)
	cancel(nil)
	return err
}

// beat sends the trainer a heartbeat until ctx ends. It cancels ctx when this server no longer leads in that term.
func (s *Scheduler) beat(ctx context.Context, lost context.CancelCauseFunc, a *attendee, term rowraft.Term) {
	tick := time.NewTicker(attendBeat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		_, now, err := s.leading()
		if err == nil && now != term {
			err = rowraft.Errorf(rowraft.CodeNoLeader, "the metadata leader changed")
		}
		if err == nil {
			err = a.tell(&rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Beat{Beat: &rowraftv1.AttendBeat{}}})
		}
		if err != nil {
			lost(err)
			return
		}
	}
}

func (s *Scheduler) welcome() *rowraftv1.AttendReply {
	_, epoch := s.machine.Sources()
	return &rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Welcome{Welcome: &rowraftv1.AttendWelcome{TableEpoch: uint64(epoch)}}}
}

// logAttend logs that checkpoints need the state of a trainer, unless that is logged already.
func (s *Scheduler) logAttend(ctx context.Context, h *rowraftv1.AttendHello) error {
	id := h.GetMember()
	if _, epoch := s.machine.Sources(); s.machine.Attends(id) && (h.GetTableEpoch() == 0 || h.GetTableEpoch() == uint64(epoch)) {
		return nil // the trainer reconnects
	}
	_, err := s.propose(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Attend{Attend: &rowraftv1.MetaAttend{
		Identity: id, Checkpoint: h.GetCheckpoint(), TableEpoch: h.GetTableEpoch(), Tables: h.GetTables(),
	}}})
	if err == nil {
		s.logger.Info("a trainer begins", "job", id.GetJob(), "rank", id.GetRank(), "checkpoint", h.GetCheckpoint())
	}
	return err
}

// logDetach logs that checkpoints no longer need the state of a member.
func (s *Scheduler) logDetach(ctx context.Context, id *rowraftv1.JobIdentity) error {
	_, err := s.propose(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Detach{Detach: &rowraftv1.MetaDetach{Identity: id}}})
	return err
}

// listen receives the trainer's messages until the call ends. It must not wait: each message renews the trainer's
// lease.
func (s *Scheduler) listen(a *attendee) error {
	for {
		req, err := a.send.stream.Recv()
		if err != nil {
			return err
		}
		s.workers.heard(a.member.GetIncarnation(), req.GetBeat())
		if park := req.GetPark(); park != nil {
			s.attendance.mu.Lock()
			if a.park == nil {
				a.park, a.parkedAt = park, time.Now()
				s.attendance.changeLocked()
			}
			s.attendance.mu.Unlock()
			continue
		}
		if req.GetBeat() != nil {
			continue
		}
		if p := a.pause.Load(); p != nil {
			p.take(req)
		}
	}
}

// serve sends the trainer new members and stop requests, and lets a parked trainer leave when mayLeave permits it.
func (c *trainers) serve(ctx context.Context, a *attendee, broken <-chan error) error {
	tick := time.NewTicker(attendBeat)
	defer tick.Stop()
	for {
		changed := c.s.attendance.watch()
		if err := c.s.tellMember(ctx, a); err != nil {
			return err
		}
		if leave := c.mayLeave(ctx, a); leave != nil {
			if err := c.s.logDetach(ctx, a.member); err != nil {
				return err
			}
			c.s.attendance.remove(a) // before the message: a checkpoint must not ask a process that exits
			return a.tell(&rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Leave{Leave: leave}})
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-a.replaced:
			return rowraft.Errorf(rowraft.CodeAlreadyExists, "another call of %s has begun", a.id)
		case err := <-broken:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

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
func (c *trainers) mayLeave(ctx context.Context, a *attendee) *rowraftv1.AttendLeave {
	t := c.s.attendance
	t.mu.Lock()
	if len(a.sending) > 0 {
		t.mu.Unlock()
		return nil // a checkpoint is storing its state
	}
	park, parkedAt := a.park, a.parkedAt
	last := t.endings[a.id.Job]
	var train []*attendee
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
		mayEnd := func(o *attendee) bool { return c.s.mayEnd(o, last.over) }
		if waiting > 0 || !park.GetEnded() && time.Since(last.over) < c.s.stopPatience(a) && slices.ContainsFunc(train, mayEnd) {
			return nil // their checkpoint needs this trainer's state
		}
		return last.leave
	}
	switch {
	case park == nil:
		return nil
	case park.GetEnded() && len(train) > 0:
		return nil
	case park.GetDestination() == "":
		return &rowraftv1.AttendLeave{}
	case time.Since(parkedAt) < c.s.stopPatience(a) && slices.ContainsFunc(train, c.s.ends):
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

// endingOf makes the checkpoint that a requests. If another trainer of the job already makes one, endingOf waits for it
// and uses it if it covers a. It returns nil if the caller must try again: the other checkpoint does not cover a, it
// failed with a temporary error, or the call of the trainer that requested it ended.
func (c *trainers) endingOf(ctx context.Context, a *attendee, park *rowraftv1.AttendPark, parkedAt time.Time) *rowraftv1.AttendLeave {
	t := c.s.attendance
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
	e.leave = &rowraftv1.AttendLeave{}
	name, err := c.s.checkpoints.CreateForJob(ctx, a.id.Job, park, func() { e.begun = time.Now() })
	switch {
	case err == nil:
		e.leave.Checkpoint = name
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
	case rowraft.CodeNoLeader, rowraft.CodeNotLeader, rowraft.CodeLeadershipLost, rowraft.CodeStarting, rowraft.CodeClosing, rowraft.CodeDeadline:
		return true
	}
	return false
}
