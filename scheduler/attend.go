package scheduler

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	attendBeat = 500 * time.Millisecond
	// tellPatience is how long a message to a trainer may wait for the messages before it to be read.
	tellPatience = 5 * time.Second
	// leavePatience is how long a trainer that has done its work waits for others of
	// its job that ought to be there, and are not, or that were told to stop, before it asks for a checkpoint.
	leavePatience = 30 * time.Second
	// stopGrace is how much later than one trainer, by a signal, others may be told to stop: it stays although its
	// checkpoint is made until they have said after that time that they were not, since theirs would need it.
	stopGrace = 2 * time.Second
	// forgetJobAfter is how long none of a job's trainers was heard of when the job
	// counts as dead: checkpoints do not wait for it any more.
	forgetJobAfter = time.Minute
	// endingPatience is how long a checkpoint of trainers that leave is tried again when it
	// failed for what passes, such as an election.
	endingPatience = 2 * time.Minute
	// maxDestinations bounds the destinations that a trainer names as it comes: each is looked up on a disk.
	maxDestinations = 8
)

// attendance are the trainers that have a call to this leader. Which trainers there
// ought to be is in the log (attendstate.go).
type attendance struct {
	patience patience // the constants, but in tests

	mu        sync.Mutex
	trainers  map[trainerID]*attendee
	heard     map[string]time.Time // of jobs: when the last trainer went
	endings   map[string]*ending   // of jobs: the last checkpoint of trainers that leave
	halts     map[string]*halt     // of jobs: the last stop
	claimed   map[string]bool      // jobs whose trainers a muster has paused
	changed   chan struct{}        // closed at the next change
	lastPause uint64
}

func newAttendance() *attendance {
	return &attendance{
		patience: patience{absent: absentPatience, pause: pausePatience, ignored: ignoredPatience, quick: quickPatience, announce: announcePatience, release: releasePatience, state: statePatience},
		trainers: make(map[trainerID]*attendee), heard: make(map[string]time.Time), endings: make(map[string]*ending), halts: make(map[string]*halt), claimed: make(map[string]bool), changed: make(chan struct{}),
	}
}

// attendee is one trainer on its call.
type attendee struct {
	id        trainerID
	trainers  uint32 // of its job
	announces bool   // it waits for others of its job
	instance  []byte
	caller    *rpc.Caller
	member    *rowraftv1.JobIdentity // nil: it entered no job
	gone      chan struct{}          // closed when the call is over
	replaced  chan struct{}          // closed when another process comes in its place

	send struct {
		turn   turn // held while a message is sent
		stream grpc.BidiStreamingServer[rowraftv1.AttendRequest, rowraftv1.AttendReply]
	}
	pause atomic.Pointer[paused] // that takes its answers

	// Under attendance.mu.
	park     *rowraftv1.AttendPark // nil while it trains
	parkedAt time.Time
	stood    bool               // it reached a boundary at the last pause; false: it has yet to answer one
	ignored  bool               // it failed to at the last one
	took     time.Duration      // the last pause, until it stood or was given up
	sending  map[uint64]*paused // that take its state, by the number of the pause

	told       uint64 // generation of its job; of the goroutine of its call
	toldToStop atomic.Bool
}

// tell sends the trainer a message. It does not wait for a trainer that reads nothing, which ends the call.
func (a *attendee) tell(r *rowraftv1.AttendReply) error {
	ctx, cancel := context.WithTimeout(context.Background(), tellPatience)
	defer cancel()
	if a.send.turn.take(ctx) != nil {
		return rowraft.Errorf(rowraft.CodeDeadline, "%s has read nothing for %v", a.id, tellPatience)
	}
	sent := make(chan error, 1)
	go func() { // ends with the call at the latest
		defer a.send.turn.give()
		sent <- a.send.stream.Send(r)
	}()
	select {
	case err := <-sent:
		return err
	case <-ctx.Done():
		return rowraft.Errorf(rowraft.CodeDeadline, "%s has read nothing for %v", a.id, tellPatience)
	}
}

// watch returns a channel that is closed at the next change.
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

// remove takes the trainer off the list. It may be called again.
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
		t.heard[a.id.job] = time.Now()
		t.changeLocked()
	}
}

// find returns the trainer that has a call as this process, nil if there is none.
func (t *attendance) find(id trainerID, instance []byte) *attendee {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a := t.trainers[id]; a != nil && bytes.Equal(a.instance, instance) {
		return a
	}
	return nil
}

// claim takes the trainers of a job for one muster: a trainer answers one pause at a time. It reports false while
// another muster has them.
func (t *attendance) claim(job string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.claimed[job] {
		return false
	}
	t.claimed[job] = true
	return true
}

// unclaim ends claim.
func (t *attendance) unclaim(job string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.claimed, job)
	t.changeLocked()
}

// allClaimed returns the jobs whose trainers a muster has paused.
func (t *attendance) allClaimed() map[string]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.claimed)
}

// list returns the trainers that are there, by job and rank.
func (t *attendance) list() (out []*attendee) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range t.trainers {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *attendee) int { return a.id.compare(b.id) })
	return out
}

// Attend serves one trainer until it leaves, its call breaks, or this server leads
// the metadata group no more.
func (c *Checkpoints) Attend(stream grpc.BidiStreamingServer[rowraftv1.AttendRequest, rowraftv1.AttendReply]) error {
	_, term, err := c.s.leading()
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if hello == nil {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "a trainer says who it is before anything else")
	}
	if err := c.s.jobs.checkOwner(stream.Context(), hello.GetJob()); err != nil {
		return err
	}
	if n := len(hello.GetDestinations()); n > maxDestinations {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "trainer %d of job %s names %d checkpoint destinations, at most %d", hello.GetRank(), hello.GetJob(), n, maxDestinations)
	}
	for _, d := range hello.GetDestinations() { // a trainer learns now what would be refused when it ends
		if err := c.s.mayWrite(stream.Context(), rpc.CallerOf(stream.Context()), d); err != nil {
			return err
		}
	}
	a := &attendee{
		caller: rpc.CallerOf(stream.Context()),
		id:     trainerID{hello.GetJob(), hello.GetRank()}, trainers: hello.GetTrainers(), announces: hello.GetAnnounces(), instance: hello.GetInstance(),
		member: hello.GetMember(), gone: make(chan struct{}), replaced: make(chan struct{}),
	}
	if err := c.s.welcomeMember(stream.Context(), a); err != nil {
		return err
	}
	a.send.stream, a.send.turn = stream, newTurn()
	if err := c.s.logAttend(stream.Context(), hello); err != nil {
		return err
	}
	c.s.attendance.add(a)
	defer c.s.attendance.remove(a)
	if err := a.tell(c.s.welcome()); err != nil {
		return err
	}
	// Recv ends with the call, so just after this function has returned.
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

// beat tells the trainer that the scheduler is there, until ctx ends; it ends ctx
// when this server leads the metadata group no more.
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
	_, epoch := s.machine.restored()
	return &rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Welcome{Welcome: &rowraftv1.AttendWelcome{TableEpoch: uint64(epoch)}}}
}

// logAttend makes sure that the next leader knows of the trainer too.
func (s *Scheduler) logAttend(ctx context.Context, h *rowraftv1.AttendHello) error {
	t := &rowraftv1.MetaTrainer{Job: h.GetJob(), Rank: h.GetRank(), Trainers: h.GetTrainers(), Instance: h.GetInstance(), Tables: h.GetTables()}
	if caller := rpc.CallerOf(ctx); caller != nil {
		t.Owner = caller.Name
	}
	if _, epoch := s.machine.restored(); s.machine.knows(t) && (h.GetTableEpoch() == 0 || h.GetTableEpoch() == uint64(epoch)) {
		return nil // it comes back
	}
	_, err := s.propose(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Attend{Attend: &rowraftv1.MetaAttend{
		Trainer: t, Checkpoint: h.GetCheckpoint(), TableEpoch: h.GetTableEpoch(),
	}}})
	if err == nil {
		s.logger.Info("a trainer begins", "job", t.Job, "rank", t.Rank, "of", t.Trainers, "checkpoint", h.GetCheckpoint())
	}
	return err
}

func (s *Scheduler) logLeave(ctx context.Context, id trainerID, instance []byte) error {
	_, err := s.propose(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Leave{Leave: &rowraftv1.MetaLeave{
		Job: id.job, Rank: id.rank, Instance: instance,
	}}})
	return err
}

// listen takes what the trainer says until the call ends.
func (s *Scheduler) listen(a *attendee) error {
	for {
		req, err := a.send.stream.Recv()
		if err != nil {
			return err
		}
		if a.member != nil {
			s.workers.heard(a.member.GetIncarnation(), req.GetBeat())
		}
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

// serve lets a trainer that has parked go when it may.
func (c *Checkpoints) serve(ctx context.Context, a *attendee, broken <-chan error) error {
	tick := time.NewTicker(attendBeat)
	defer tick.Stop()
	for {
		changed := c.s.attendance.watch()
		if err := c.s.tellMember(ctx, a); err != nil {
			return err
		}
		if leave := c.mayLeave(ctx, a); leave != nil {
			if err := c.s.logLeave(ctx, a.id, a.instance); err != nil {
				return err
			}
			c.s.attendance.remove(a) // before it is told: its process may end at once, and a checkpoint must not ask it any more
			return a.tell(&rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Leave{Leave: leave}})
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-a.replaced:
			return rowraft.Errorf(rowraft.CodeAlreadyExists, "another process has become %s", a.id)
		case err := <-broken:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ending is a checkpoint that trainers asked for as they left.
type ending struct {
	begun time.Time // trainers that had parked by then need no other one
	over  time.Time
	done  chan struct{}
	leave *rowraftv1.AttendLeave
}

// covers reports that the checkpoint is over and has the state at which a trainer
// parked.
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

// mayLeave returns what to tell a trainer that has parked, or nil if it has not, or
// has to wait: for others of its job, or for a checkpoint, which is made in here.
func (c *Checkpoints) mayLeave(ctx context.Context, a *attendee) *rowraftv1.AttendLeave {
	t := c.s.attendance
	t.mu.Lock()
	if len(a.sending) > 0 {
		t.mu.Unlock()
		return nil // a checkpoint is storing its state
	}
	park, parkedAt := a.park, a.parkedAt
	last := t.endings[a.id.job]
	var train []*attendee
	waiting, there := 0, uint32(0) // waiting: for a checkpoint
	for _, o := range t.trainers {
		if o.id.job != a.id.job {
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
			return nil // theirs needs this trainer's state
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
		return nil // they park in a moment, and one checkpoint does for all
	case park.GetEnded() && there < a.trainers && time.Since(parkedAt) < leavePatience && !park.GetSkipAbsent():
		return nil
	}
	leave := c.endingOf(ctx, a, park, parkedAt)
	if leave != nil && leave.GetError() == "" {
		return nil // look again: others may wait for one that needs this trainer
	}
	return leave
}

// endingOf makes the checkpoint that a asks for, or waits for one that another
// trainer of the job asked for after a had parked. It returns nil if it must be
// asked again: also when it has failed for what passes, or with the call of who had asked.
func (c *Checkpoints) endingOf(ctx context.Context, a *attendee, park *rowraftv1.AttendPark, parkedAt time.Time) *rowraftv1.AttendLeave {
	t := c.s.attendance
	t.mu.Lock()
	e := t.endings[a.id.job]
	mine := e == nil
	if !mine {
		select {
		case <-e.done: // and does not cover a, or nobody would be here
			mine = true
		default:
		}
	}
	if mine {
		e = &ending{done: make(chan struct{})}
		t.endings[a.id.job] = e
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
	name, err := c.createFor(ctx, a.id.job, park, func() { e.begun = time.Now() })
	switch {
	case err == nil:
		e.leave.Checkpoint = name
	case ctx.Err() != nil, passes(err) && time.Since(parkedAt) < endingPatience:
		e.begun, e.leave = time.Time{}, nil // so it covers nobody
	default:
		e.leave.Error = err.Error()
	}
	e.over = time.Now()
	close(e.done)
	return e.leave
}

// passes reports that a checkpoint failed because somebody was not there at that moment.
func passes(err error) bool {
	switch rowraft.CodeOf(err) {
	case rowraft.CodeNoLeader, rowraft.CodeNotLeader, rowraft.CodeLeadershipLost, rowraft.CodeStarting, rowraft.CodeClosing, rowraft.CodeDeadline:
		return true
	}
	return false
}
