package scheduler

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	// absentPatience is how long a checkpoint waits for a trainer that ought to be
	// there: it may be on its way to a new leader.
	absentPatience = 6 * time.Second
	// pausePatience is how long a trainer may take to its next batch boundary.
	pausePatience = 30 * time.Second
	// ignoredPatience is how long one may take that did not answer the last time, in a job that can be left out.
	ignoredPatience = 2 * time.Second
	// quickPause is how long a trainer took at most the last time that counts as quick. Quick ones are asked last, and may
	// take quickPatience: others stand meanwhile. One that takes longer is asked before them from then on.
	quickPause    = 500 * time.Millisecond
	quickPatience = 2 * time.Second
	// announcePatience is how long one may take to say how far it is, which needs no
	// boundary.
	announcePatience = 5 * time.Second
	// releasePatience is how long its answer may take after that.
	releasePatience = 5 * time.Second
)

// patience is that of checkpoints with trainers.
type patience struct{ absent, pause, ignored, quick, announce, release, state time.Duration }

// muster are the trainers of one cut. The checkpoint must have the states of one job, need. Any other job of which a
// trainer is absent, does not answer or fails is left out as a whole, so that no job keeps others from their
// checkpoints. The checkpoint then has the rows of that job and nothing of its trainers, so a run of it that
// would go on from there is refused.
type muster struct {
	s       *Scheduler
	id      uint64
	need    string           // job that must be in the checkpoint; "": none
	skip    bool             // leave out single trainers that do not answer, also of need
	again   bool             // another attempt follows: what it may not meet again fails this one, and leaves no job out
	left    map[string]error // jobs that are left out, and why; also by attempts before this one
	hurried bool             // those that are paused now have quickPatience only
	claims  map[string]bool  // jobs that no other muster can pause
	members []*paused
	data    []*checkpoint.Parts // that the scheduler divides, by job
}

// paused is one trainer of a muster.
type paused struct {
	id    uint64
	a     *attendee
	in    chan *rowraftv1.AttendRequest
	state chan upload
	done  chan struct{} // closed when nobody takes from in and state any more
	once  sync.Once

	together    bool   // it has announced a boundary
	boundary    uint64 // that it has announced, then the one at which it stands
	stands      bool
	step, bytes uint64
	parts       []*rowraftv1.PartReached // of the data, that it has
	pausedFor   time.Duration
	blob        checkpoint.Blob
}

// take passes an answer on; one of another pause is dropped. It never waits: the lease of the trainer is renewed by
// the same goroutine. A trainer sends at most three answers to a pause, and in has room for them.
func (p *paused) take(req *rowraftv1.AttendRequest) {
	id := uint64(0)
	switch step := req.GetStep().(type) {
	case *rowraftv1.AttendRequest_Paused:
		id = step.Paused.GetId()
	case *rowraftv1.AttendRequest_Failed:
		id = step.Failed.GetId()
	case *rowraftv1.AttendRequest_Released:
		id = step.Released.GetId()
	case *rowraftv1.AttendRequest_Announced:
		id = step.Announced.GetId()
	}
	if id != p.id {
		return
	}
	select {
	case p.in <- req:
	default:
	}
}

// next waits for an answer.
func (p *paused) next(ctx context.Context) (*rowraftv1.AttendRequest, error) {
	select {
	case req := <-p.in:
		if f := req.GetFailed(); f.GetAgain() {
			return nil, rowraft.Errorf(rowraft.CodeNoLeader, "%s: %s", p.a.id, f.GetReason())
		} else if f != nil {
			return nil, rowraft.Errorf(rowraft.CodePrecondition, "%s has no state to give: %s", p.a.id, f.GetReason())
		}
		return req, nil
	case <-p.a.gone:
		return nil, rowraft.Errorf(rowraft.CodeNoLeader, "%s has gone", p.a.id)
	case <-ctx.Done():
		return nil, rowraft.Errorf(rowraft.CodeDeadline, "%s does not answer: %w", p.a.id, ctx.Err())
	}
}

// pauseTrainers brings every trainer of the jobs that train to its next batch
// boundary, and those of a job who wait for each other to the same one. need is one of
// the jobs, which must be in the checkpoint.
//
// It fails if a trainer of need is absent or does not answer, unless skip is set: then
// the cut continues without it, and the caller must know that its job cannot go on
// exactly from such a checkpoint. Failing loses nothing, as the last checkpoint is still
// there; so it is what happens unless asked otherwise. left gets the other jobs that are left out.
func (s *Scheduler) pauseTrainers(ctx context.Context, need string, skip, again bool, left map[string]error) (*muster, error) {
	who, err := s.assemble(ctx, need, skip, left)
	if err != nil {
		return nil, err
	}
	m := s.newMuster(need, left)
	m.skip, m.again = skip, again
	if err := m.pauseAll(ctx, who); err != nil {
		m.letGo()
		return nil, err
	}
	return m, nil
}

// newMuster begins a pause.
func (s *Scheduler) newMuster(need string, left map[string]error) *muster {
	s.attendance.mu.Lock()
	defer s.attendance.mu.Unlock()
	s.attendance.lastPause++
	return &muster{s: s, id: s.attendance.lastPause, need: need, left: left, claims: make(map[string]bool)}
}

// proveTrainers asks each job but need that has yet to prove that it answers, by itself, and lets it continue as soon as
// its trainers stand: no job stands still because another one does not answer, and no cut waits for it. From then on the
// attendees say whether they answered.
func (s *Scheduler) proveTrainers(ctx context.Context, need string) {
	jobs := make(map[string][]*attendee)
	for _, a := range s.attendance.list() {
		if a.id.job != need && !s.jobWaits(a.id.job) {
			jobs[a.id.job] = append(jobs[a.id.job], a)
		}
	}
	s.attendance.mu.Lock()
	maps.DeleteFunc(jobs, func(_ string, who []*attendee) bool {
		return !slices.ContainsFunc(who, func(a *attendee) bool { return !a.stood && !a.ignored })
	})
	s.attendance.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, s.attendance.patience.pause)
	defer cancel()
	var wg sync.WaitGroup
	for job, who := range jobs {
		wg.Go(func() {
			m := s.newMuster(job, make(map[string]error))
			err := m.stop(limited, who)
			m.letGo()
			if rowraft.CodeOf(err) != rowraft.CodeDeadline || ctx.Err() != nil {
				return
			}
			s.attendance.mu.Lock()
			defer s.attendance.mu.Unlock()
			for _, a := range who {
				if !a.stood {
					a.ignored = true
				}
			}
		})
	}
	wg.Wait()
}

// pauseAll returns when all trainers stand that are not left out. Jobs that have not proved that they answer, or did
// not answer the last time, come first and have little time to: proveTrainers gave them more. Jobs that
// answered slowly the last time come before those that were quick, so a quick job stands for no longer than
// quickPatience because another does not answer. What a quick one misses then it may make good in the next attempt.
func (m *muster) pauseAll(ctx context.Context, who []*attendee) error {
	const unproved, slow, quick = 0, 1, 2
	var rounds [3][]*attendee
	class := make(map[string]int)
	m.s.attendance.mu.Lock()
	for _, a := range who {
		c, found := class[a.id.job]
		if !found {
			c = quick
		}
		switch {
		case a.id.job != m.need && (a.ignored || !a.stood):
			c = unproved
		case !a.stood || a.took > quickPause:
			c = min(c, slow)
		}
		class[a.id.job] = c
	}
	m.s.attendance.mu.Unlock()
	for _, a := range who {
		rounds[class[a.id.job]] = append(rounds[class[a.id.job]], a)
	}
	for c, round := range rounds {
		patience := m.s.attendance.patience.pause
		switch c {
		case unproved:
			patience = m.s.attendance.patience.ignored
		case quick:
			patience = m.s.attendance.patience.quick
		}
		wait, cancel := context.WithTimeout(ctx, patience)
		m.hurried = c == quick
		err := m.stop(wait, round)
		m.hurried = false
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// stop returns when the trainers in who stand, but for those of jobs that it leaves out.
func (m *muster) stop(ctx context.Context, who []*attendee) error {
	barriers := make(map[string]*barrier)
	var round []*paused
	for _, a := range who {
		job := a.id.job
		if _, out := m.left[job]; out {
			continue
		}
		if !m.claims[job] {
			if !m.s.attendance.claim(job) {
				err := rowraft.Errorf(rowraft.CodeNoLeader, "the trainers of job %s are being stopped", job)
				if !m.mayLeaveOut(ctx, job, err) {
					return err
				}
				m.leaveOut(job, err)
				continue
			}
			m.claims[job] = true
		}
		p := &paused{id: m.id, a: a, in: make(chan *rowraftv1.AttendRequest, 4), state: make(chan upload), done: make(chan struct{})}
		a.pause.Store(p)
		round = append(round, p)
		if a.announces {
			if barriers[job] == nil {
				barriers[job] = &barrier{all: make(chan struct{}), patience: m.s.attendance.patience.announce}
			}
			barriers[job].left++
		}
	}
	m.members = append(m.members, round...)
	return m.each(ctx, round, func(ctx context.Context, p *paused) error {
		b := barriers[p.a.id.job]
		begun := time.Now()
		err := p.stop(ctx, b)
		m.s.attendance.mu.Lock()
		p.a.took = time.Since(begun)
		m.s.attendance.mu.Unlock()
		if err != nil {
			return err
		}
		if p.together && p.boundary != b.target {
			return rowraft.Errorf(rowraft.CodeNoLeader, "%s stands at boundary %d, others of its job at %d", p.a.id, p.boundary, b.target)
		}
		m.s.attendance.mu.Lock()
		defer m.s.attendance.mu.Unlock()
		p.a.stood, p.a.ignored = true, false
		return nil
	})
}

// barrier is where the trainers of a job agree on a boundary.
type barrier struct {
	all      chan struct{} // closed when everybody has said something, or will not
	patience time.Duration // with one that says nothing

	mu     sync.Mutex
	left   int
	target uint64
}

// say takes what one of them has announced, 0 if it has not.
func (b *barrier) say(boundary uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.target = max(b.target, boundary)
	if b.left--; b.left == 0 {
		close(b.all)
	}
}

// stop tells the trainer to pause, and returns when it has. b is nil if it waits for no
// others.
func (p *paused) stop(ctx context.Context, b *barrier) error {
	err := p.tell(&rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Pause{Pause: &rowraftv1.AttendPause{Id: p.id, Announce: p.a.announces}}})
	if p.a.announces {
		if err == nil {
			err = p.announce(ctx, b.patience)
		}
		b.say(p.boundary) // nothing, if it has gone: the others wait for its word
		if err == nil && p.together {
			err = p.follow(ctx, b)
		}
	}
	for err == nil && !p.stands {
		err = p.hear(ctx)
	}
	return err
}

func (p *paused) tell(r *rowraftv1.AttendReply) error {
	if err := p.a.tell(r); err != nil {
		return rowraft.Errorf(rowraft.CodeNoLeader, "%s has gone: %w", p.a.id, err)
	}
	return nil
}

// announce hears how far the trainer is; one whose training is over stands already.
func (p *paused) announce(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return p.hear(ctx)
}

// follow tells the trainer where all of its job stand, once that is known.
func (p *paused) follow(ctx context.Context, b *barrier) error {
	select {
	case <-b.all:
	case <-p.a.gone:
		return rowraft.Errorf(rowraft.CodeNoLeader, "%s has gone", p.a.id)
	case <-ctx.Done():
		return rowraft.Errorf(rowraft.CodeDeadline, "the trainers of job %s do not agree where to stand: %w", p.a.id.job, ctx.Err())
	}
	return p.tell(&rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Target{Target: &rowraftv1.AttendTarget{Id: p.id, Boundary: b.target}}})
}

// hear takes one answer to a pause.
func (p *paused) hear(ctx context.Context) error {
	req, err := p.next(ctx)
	if err != nil {
		return err
	}
	if a := req.GetAnnounced(); a != nil {
		p.together, p.boundary = true, a.GetBoundary()
		return nil
	}
	at := req.GetPaused()
	p.stands, p.step, p.bytes, p.parts = true, at.GetStep(), at.GetBytes(), at.GetParts()
	if p.together {
		p.boundary = at.GetBoundary()
	}
	return nil
}

// each calls f for all of some members at once. The first error that can neither be skipped nor be met by leaving a
// job out ends the calls of all others; one that can ends those of its job.
func (m *muster) each(ctx context.Context, who []*paused, f func(context.Context, *paused) error) error {
	all, cancel := context.WithCancel(ctx)
	defer cancel()
	jobs := make(map[string]context.Context)
	cancels := make(map[string]context.CancelFunc)
	for _, p := range who {
		if job := p.a.id.job; jobs[job] == nil {
			jobs[job], cancels[job] = context.WithCancel(all)
			defer cancels[job]()
		}
	}
	var mu sync.Mutex
	var failed error
	skipped := make(map[*paused]bool)
	out := make(map[string]error)
	var wg sync.WaitGroup
	for _, p := range who {
		job := p.a.id.job
		wg.Go(func() {
			err := f(jobs[job], p)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil || failed != nil || out[job] != nil:
			case m.skip && !ofDestination(err):
				skipped[p] = true
			case m.mayLeaveOut(ctx, job, err):
				out[job] = err
				cancels[job]()
			default:
				failed = err
				cancel()
			}
			if skipped[p] {
				m.s.logger.Warn("a checkpoint goes on without a trainer", "job", job, "rank", p.a.id.rank, "err", err)
			}
		})
	}
	wg.Wait()
	for _, job := range slices.Sorted(maps.Keys(out)) {
		m.leaveOut(job, out[job])
	}
	for p := range skipped {
		m.dismiss(p)
	}
	m.members = slices.DeleteFunc(m.members, func(p *paused) bool { return skipped[p] })
	sortPaused(m.members)
	return failed
}

// mayLeaveOut reports whether an error of a job leaves it out: it is not the job that the checkpoint is for, the
// checkpoint itself is not being ended, and no other attempt follows that may not meet the error.
func (m *muster) mayLeaveOut(ctx context.Context, job string, err error) bool {
	code := rowraft.CodeOf(err)
	passes := code.Retryable() && (code != rowraft.CodeDeadline || m.hurried)
	return job != m.need && !ofDestination(err) && ctx.Err() != context.Canceled && !(m.again && passes)
}

// leaveOut lets the trainers of a job continue, and takes all of it out of the checkpoint.
func (m *muster) leaveOut(job string, why error) {
	m.left[job] = why
	m.s.logger.Warn("a checkpoint leaves a job out: no run of the job can go on from it", "job", job, "err", why)
	m.members = slices.DeleteFunc(m.members, func(p *paused) bool {
		if p.a.id.job != job {
			return false
		}
		m.dismiss(p)
		m.s.attendance.mu.Lock()
		p.a.stood, p.a.ignored = false, rowraft.CodeOf(why) == rowraft.CodeDeadline
		m.s.attendance.mu.Unlock()
		return true
	})
	m.data = slices.DeleteFunc(m.data, func(p *checkpoint.Parts) bool { return p.Job == job })
}

// dismiss lets one trainer continue, and takes no more of its answers.
func (m *muster) dismiss(p *paused) {
	_ = p.goOn(false) // one that has gone continues anyway
	m.done(p)
}

// done takes no more answers of a trainer. Another muster may pause it when it has been let go.
func (m *muster) done(p *paused) {
	p.once.Do(func() { close(p.done) })
	m.s.attendance.mu.Lock()
	delete(p.a.sending, p.id)
	m.s.attendance.mu.Unlock()
	m.unclaim(p)
}

// unclaim lets another muster have the trainers of a job, once.
func (m *muster) unclaim(p *paused) {
	if job := p.a.id.job; m.claims[job] {
		delete(m.claims, job)
		m.s.attendance.unclaim(job)
	}
}

// letGo gives the muster up, if there is one: trainers continue and send nothing.
func (m *muster) letGo() {
	if m == nil {
		return
	}
	for _, p := range m.members {
		m.dismiss(p)
	}
}

// end takes no more answers.
func (m *muster) end() {
	if m == nil {
		return
	}
	for _, p := range m.members {
		m.done(p)
	}
}

func (p *paused) goOn(send bool) error {
	return p.a.tell(&rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Release{Release: &rowraftv1.AttendRelease{Id: p.id, Send: send}}})
}

// release lets the trainers continue. Each must have stood still until then: what it
// pushed before its pause is in the cut, and nothing that it pushed afterwards.
func (m *muster) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.s.attendance.patience.release)
	defer cancel()
	// What a trainer that came meanwhile has pushed may be in the cut, and its state is not.
	for a := m.newcomer(); a != nil && !m.skip; a = m.newcomer() {
		err := rowraft.Errorf(rowraft.CodeNoLeader, "%s began during the cut", a.id)
		if !m.mayLeaveOut(ctx, a.id.job, err) {
			return err
		}
		m.leaveOut(a.id.job, err)
	}
	err := m.each(ctx, m.members, func(ctx context.Context, p *paused) error {
		m.s.attendance.mu.Lock()
		if p.a.sending == nil {
			p.a.sending = make(map[uint64]*paused)
		}
		p.a.sending[p.id] = p // it may send at once
		m.s.attendance.mu.Unlock()
		if err := p.goOn(true); err != nil {
			return rowraft.Errorf(rowraft.CodeNoLeader, "%s has gone: %w", p.a.id, err)
		}
		req, err := p.next(ctx)
		if err != nil {
			return err
		}
		if !req.GetReleased().GetHeld() {
			return rowraft.Errorf(rowraft.CodeNoLeader, "%s did not stand still until the cut", p.a.id)
		}
		p.pausedFor = time.Duration(req.GetReleased().GetPausedNs())
		return nil
	})
	for _, p := range m.members {
		m.unclaim(p)
	}
	return err
}

// newcomer returns a trainer that is there, neither in the muster nor in a job that is left out, and does more than
// wait for others; nil if there is none.
func (m *muster) newcomer() *attendee {
	for _, a := range m.s.attendance.list() {
		_, out := m.left[a.id.job]
		if !out && !m.s.jobWaits(a.id.job) && !slices.ContainsFunc(m.members, func(p *paused) bool { return p.a == a }) {
			return a
		}
	}
	return nil
}
