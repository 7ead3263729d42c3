package jobs

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/checkpoints"
)

const (
	// absentPatience bounds how long a checkpoint, or a trainer that is done, waits for an absent one. That may be on
	// its way to a new leader: with a kill of a server every 3.5 s, 6 s was too short for one checkpoint of eight.
	absentPatience = 10 * time.Second
	// pausePatience bounds how long a trainer may take until its next batch boundary.
	pausePatience = 30 * time.Second
	// ignoredPatience is pausePatience for a trainer that did not answer the last pause, in a job that may be left out.
	ignoredPatience = 2 * time.Second
	// A trainer whose last pause took at most quickPause counts as quick. Quick trainers are paused last and get
	// quickPatience, because all others are stopped at that time. A trainer that takes longer is no longer quick.
	quickPause    = 500 * time.Millisecond
	quickPatience = 2 * time.Second
	// announcePatience bounds how long a trainer may take to announce its position. The answer needs no batch boundary.
	announcePatience = 5 * time.Second
	// releasePatience bounds how long a trainer may take to answer a release.
	releasePatience = 5 * time.Second
)

// patience holds the time limits of a checkpoint with trainers.
type patience struct{ absent, pause, ignored, quick, announce, release, state time.Duration }

// pauseRound is one round that pauses the trainers for one cut.
//
// The checkpoint must have the trainer states of one job, need. Every other job is left out as a whole if one of its
// trainers is absent, does not answer or fails. So no job can prevent the checkpoints of another one. The checkpoint
// then has the rows of a left-out job but no trainer states, and a run of that job cannot resume from it.
type pauseRound struct {
	c       *Trainers
	id      uint64
	need    string           // job whose trainers must be in the checkpoint; "": none
	skip    bool             // leave out single trainers that do not answer, also those of need
	again   bool             // another attempt follows: a temporary error fails this attempt and leaves no job out
	left    map[string]error // jobs that are left out, with the reason; kept across the attempts of one checkpoint
	hurried bool             // the trainers paused now get only quickPatience
	claims  map[string]bool  // jobs that this pauseRound has claimed
	members []*pausedTrainer
	data    []*checkpoint.Splits // data positions that the scheduler assigns, by job
}

// pausedTrainer is one trainer in a pauseRound.
type pausedTrainer struct {
	id    uint64
	a     *trainer
	in    chan *rowraftv1.AttendRequest
	state chan upload
	done  chan struct{} // closed when no goroutine receives from in and state any more
	once  sync.Once

	together    bool   // the trainer has announced a boundary
	boundary    uint64 // the announced boundary, then the boundary at which the trainer stopped
	arrived     bool
	step, bytes uint64
	splits      []*rowraftv1.SplitReached // data splits that the trainer has, with its positions in them
	pausedFor   time.Duration
	blob        checkpoint.Blob
}

// take forwards an answer and drops answers to other pauses. It never waits, because the same goroutine renews the
// trainer's lease. A trainer sends at most three answers to a pause, so they fit in the channel.
func (p *pausedTrainer) take(req *rowraftv1.AttendRequest) {
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

// next waits for one answer.
func (p *pausedTrainer) next(ctx context.Context) (*rowraftv1.AttendRequest, error) {
	select {
	case req := <-p.in:
		if f := req.GetFailed(); f.GetAgain() {
			return nil, rowraft.Errorf(rowraft.CodeNoLeader, "%s: %s", p.a.id, f.GetReason())
		} else if f != nil {
			return nil, rowraft.Errorf(rowraft.CodePrecondition, "%s has no state to give: %s", p.a.id, f.GetReason())
		}
		return req, nil
	case <-p.a.gone:
		return nil, rowraft.Errorf(rowraft.CodeNoLeader, "%s has disconnected", p.a.id)
	case <-ctx.Done():
		return nil, rowraft.Errorf(rowraft.CodeDeadline, "%s does not answer: %w", p.a.id, ctx.Err())
	}
}

// Pause stops every trainer of the training jobs at its next batch boundary. Trainers of one job that synchronize stop
// at the same boundary. need is the job that must be in the checkpoint.
//
// If a trainer of need is absent or does not answer, Pause fails, unless skip is set. With skip the cut continues
// without that trainer, and the job cannot resume exactly from the checkpoint. Failure is the default because
// it loses nothing: the previous checkpoint still exists. left receives the other jobs that are left out.
func (c *Trainers) Pause(ctx context.Context, need string, skip, again bool,
	left map[string]error) (checkpoints.Pause, error) {
	trainers, err := c.waitForTrainers(ctx, need, skip, left)
	if err != nil {
		return nil, err
	}
	m := c.newRound(need, left)
	m.skip, m.again = skip, again
	if err := m.pauseAll(ctx, trainers); err != nil {
		m.Cancel()
		return nil, err
	}
	m.leaveIdleOut()
	return m, nil
}

// leaveIdleOut leaves out the jobs that have trained, whose trainers' state a checkpoint needs, and of which no trainer
// has stopped for it. No worker of them trains, and waitForTrainers did not wait for them.
func (m *pauseRound) leaveIdleOut() {
	for _, r := range m.c.machine.Runs() {
		job := r.GetJob()
		stopped := slices.ContainsFunc(m.members, func(p *pausedTrainer) bool { return p.a.id.Job == job })
		needed := slices.ContainsFunc(r.GetMembers(), func(w *rowraftv1.RunMember) bool { return w.GetAttending() != 0 })
		if r.GetGeneration() > 0 && job != m.need && needed && !stopped && m.left[job] == nil {
			m.leaveOut(job, rowraft.Errorf(rowraft.CodePrecondition,
				"no worker of job %s trains, and none of its trainers is connected", job))
		}
	}
}

// newRound returns a round with a new pause id.
func (c *Trainers) newRound(need string, left map[string]error) *pauseRound {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastPause++
	return &pauseRound{c: c, id: c.lastPause, need: need, left: left, claims: make(map[string]bool)}
}

// Prove finds out which jobs answer, before the cut. It pauses each job that has not answered yet, except need,
// on its own and lets it continue as soon as its trainers have stopped. So no job waits for another one that does not
// answer, and neither does the cut. The result is in trainer.answered and trainer.ignored.
func (c *Trainers) Prove(ctx context.Context, need string) {
	jobs := make(map[string][]*trainer)
	for _, a := range c.list() {
		if a.id.Job != need && !c.jobWaits(a.id.Job) {
			jobs[a.id.Job] = append(jobs[a.id.Job], a)
		}
	}
	c.mu.Lock()
	maps.DeleteFunc(jobs, func(_ string, trainers []*trainer) bool {
		return !slices.ContainsFunc(trainers, func(a *trainer) bool { return !a.answered && !a.ignored })
	})
	c.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, c.patience.pause)
	defer cancel()
	var wg sync.WaitGroup
	for job, trainers := range jobs {
		wg.Go(func() {
			m := c.newRound(job, make(map[string]error))
			err := m.stop(limited, trainers)
			m.Cancel()
			if rowraft.CodeOf(err) != rowraft.CodeDeadline || ctx.Err() != nil {
				return
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, a := range trainers {
				if !a.answered {
					a.ignored = true
				}
			}
		})
	}
	wg.Wait()
}

// pauseAll returns when all trainers have stopped, except those that are left out. It pauses the jobs in three rounds:
//
//  1. Jobs that have not answered yet, or did not answer the last pause. They get ignoredPatience; Prove gave
//     them more time.
//  2. Jobs that answered slowly the last time.
//  3. Jobs that answered quickly the last time.
//
// So a quick job is stopped for at most quickPatience because of a job that does not answer. A quick job that misses
// its limit can still answer in the next attempt, where it counts as slow.
func (m *pauseRound) pauseAll(ctx context.Context, trainers []*trainer) error {
	const unproved, slow, quick = 0, 1, 2
	var rounds [3][]*trainer
	class := make(map[string]int)
	m.c.mu.Lock()
	for _, a := range trainers {
		c, found := class[a.id.Job]
		if !found {
			c = quick
		}
		switch {
		case a.id.Job != m.need && (a.ignored || !a.answered):
			c = unproved
		case !a.answered || a.took > quickPause:
			c = min(c, slow)
		}
		class[a.id.Job] = c
	}
	m.c.mu.Unlock()
	for _, a := range trainers {
		rounds[class[a.id.Job]] = append(rounds[class[a.id.Job]], a)
	}
	for c, round := range rounds {
		patience := m.c.patience.pause
		switch c {
		case unproved:
			patience = m.c.patience.ignored
		case quick:
			patience = m.c.patience.quick
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

// stop returns when the trainers in the list have stopped, except those of jobs that it leaves out.
func (m *pauseRound) stop(ctx context.Context, trainers []*trainer) error {
	barriers := make(map[string]*barrier)
	var round []*pausedTrainer
	for _, a := range trainers {
		job := a.id.Job
		if _, out := m.left[job]; out {
			continue
		}
		if !m.claims[job] {
			if !m.c.claim(job) {
				err := claimedError(job)
				if !m.mayLeaveOut(ctx, job, err) {
					return err
				}
				m.leaveOut(job, err)
				continue
			}
			m.claims[job] = true
		}
		p := &pausedTrainer{id: m.id, a: a, in: make(chan *rowraftv1.AttendRequest, 4), state: make(chan upload),
			done: make(chan struct{})}
		a.pause.Store(p)
		round = append(round, p)
		if a.announces {
			if barriers[job] == nil {
				barriers[job] = &barrier{all: make(chan struct{}), patience: m.c.patience.announce}
			}
			// Before any trainer is asked: the barrier must not open after the first announcements.
			barriers[job].left++
		}
	}
	m.members = append(m.members, round...)
	return m.each(ctx, round, func(ctx context.Context, p *pausedTrainer) error {
		b := barriers[p.a.id.Job]
		begun := time.Now()
		err := p.stop(ctx, b)
		m.c.mu.Lock()
		// The time is kept also for a trainer that failed: it then counts as slow and does not hold up quick jobs in the next
		// attempt.
		p.a.took = time.Since(begun)
		m.c.mu.Unlock()
		if err != nil {
			return err
		}
		if p.together && p.boundary != b.target {
			return rowraft.Errorf(rowraft.CodeNoLeader, "%s stopped at boundary %d, others of its job at %d", p.a.id, p.boundary,
				b.target)
		}
		m.c.mu.Lock()
		defer m.c.mu.Unlock()
		p.a.answered, p.a.ignored = true, false
		return nil
	})
}

// barrier collects the boundaries that the trainers of one job announce. The target is the highest one, because a
// trainer cannot go back.
type barrier struct {
	all      chan struct{} // closed when every trainer has announced a boundary or failed
	patience time.Duration // how long to wait for one announcement

	mu     sync.Mutex
	left   int
	target uint64
}

// say records one announcement; 0 means that the trainer announced none.
func (b *barrier) say(boundary uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.target = max(b.target, boundary)
	if b.left--; b.left == 0 {
		close(b.all)
	}
}

// stop tells the trainer to pause and returns when it has stopped. b is nil if the trainer does not agree on a boundary
// with others.
func (p *pausedTrainer) stop(ctx context.Context, b *barrier) error {
	err := p.tell(&rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Pause{Pause: &rowraftv1.AttendPause{Id: p.id,
		Announce: p.a.announces}}})
	if p.a.announces {
		if err == nil {
			err = p.announce(ctx, b.patience)
		}
		b.say(p.boundary) // 0 if the trainer disconnected: the others wait for its announcement
		if err == nil && p.together {
			err = p.follow(ctx, b)
		}
	}
	for err == nil && !p.arrived {
		err = p.recv(ctx)
	}
	return err
}

func (p *pausedTrainer) tell(r *rowraftv1.AttendReply) error {
	if err := p.a.tell(r); err != nil {
		return rowraft.Errorf(rowraft.CodeNoLeader, "%s has disconnected: %w", p.a.id, err)
	}
	return nil
}

// announce receives the announcement of the trainer. A trainer that has finished answers that it has already stopped.
func (p *pausedTrainer) announce(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return p.recv(ctx)
}

// follow waits until the target boundary of the job is known, and sends it to the trainer.
func (p *pausedTrainer) follow(ctx context.Context, b *barrier) error {
	select {
	case <-b.all:
	case <-p.a.gone:
		return rowraft.Errorf(rowraft.CodeNoLeader, "%s has disconnected", p.a.id)
	case <-ctx.Done():
		return rowraft.Errorf(rowraft.CodeDeadline, "the trainers of job %s do not agree on a boundary: %w", p.a.id.Job,
			ctx.Err())
	}
	return p.tell(&rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Target{Target: &rowraftv1.AttendTarget{Id: p.id,
		Boundary: b.target}}})
}

// hear receives one answer to a pause.
func (p *pausedTrainer) recv(ctx context.Context) error {
	req, err := p.next(ctx)
	if err != nil {
		return err
	}
	if a := req.GetAnnounced(); a != nil {
		p.together, p.boundary = true, a.GetBoundary()
		return nil
	}
	at := req.GetPaused()
	p.arrived, p.step, p.bytes, p.splits = true, at.GetStep(), at.GetBytes(), at.GetSplits()
	if p.together {
		p.boundary = at.GetBoundary()
	}
	return nil
}

// each calls f for every trainer in the list concurrently. An error that leaves a job out cancels the calls of that job
// only. The first error that neither skips a trainer nor leaves a job out cancels all calls, and each returns it.
func (m *pauseRound) each(ctx context.Context, trainers []*pausedTrainer,
	f func(context.Context, *pausedTrainer) error) error {
	all, cancel := context.WithCancel(ctx)
	defer cancel()
	jobs := make(map[string]context.Context)
	cancels := make(map[string]context.CancelFunc)
	for _, p := range trainers {
		if job := p.a.id.Job; jobs[job] == nil {
			jobs[job], cancels[job] = context.WithCancel(all)
			defer cancels[job]()
		}
	}
	var mu sync.Mutex
	var failed error
	skipped := make(map[*pausedTrainer]bool)
	out := make(map[string]error)
	var wg sync.WaitGroup
	for _, p := range trainers {
		job := p.a.id.Job
		wg.Go(func() {
			err := f(jobs[job], p)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil || failed != nil || out[job] != nil:
			// A destination that fails would fail for every trainer, and the checkpoint would have no state at all.
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
				m.c.logger.Warn("a checkpoint continues without a trainer", "job", job, "rank", p.a.id.Rank, "err", err)
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
	m.members = slices.DeleteFunc(m.members, func(p *pausedTrainer) bool { return skipped[p] })
	sortPaused(m.members)
	return failed
}

// mayLeaveOut reports whether an error leaves the job out. It does unless the job is need, the error comes from the
// destination, the checkpoint is cancelled, or another attempt follows and the error is temporary.
func (m *pauseRound) mayLeaveOut(ctx context.Context, job string, err error) bool {
	code := rowraft.CodeOf(err)
	passes := code.Retryable() && (code != rowraft.CodeDeadline || m.hurried)
	return job != m.need && !ofDestination(err) && ctx.Err() != context.Canceled && !(m.again && passes)
}

// leaveOut removes all of a job from the checkpoint and lets its trainers continue.
func (m *pauseRound) leaveOut(job string, why error) {
	m.left[job] = why
	m.c.logger.Warn("a checkpoint leaves a job out: no run of the job can resume from it", "job", job, "err", why)
	m.members = slices.DeleteFunc(m.members, func(p *pausedTrainer) bool {
		if p.a.id.Job != job {
			return false
		}
		m.dismiss(p)
		m.c.mu.Lock()
		p.a.answered, p.a.ignored = false, rowraft.CodeOf(why) == rowraft.CodeDeadline
		m.c.mu.Unlock()
		return true
	})
	m.data = slices.DeleteFunc(m.data, func(p *checkpoint.Splits) bool { return p.Job == job })
}

// dismiss lets one trainer continue and ends its part in the round.
func (m *pauseRound) dismiss(p *pausedTrainer) {
	_ = p.resume(false) // a trainer that disconnected continues without the message
	m.done(p)
}

// done stops the receipt of a trainer's answers. Another pauseRound may then pause its job.
func (m *pauseRound) done(p *pausedTrainer) {
	p.once.Do(func() { close(p.done) })
	m.c.mu.Lock()
	// From here on SendState finds no pause for this trainer, so a late state goes nowhere.
	delete(p.a.sending, p.id)
	m.c.mu.Unlock()
	m.unclaim(p)
}

// unclaim releases the round's claim on the job of p, if it still has it.
func (m *pauseRound) unclaim(p *pausedTrainer) {
	if job := p.a.id.Job; m.claims[job] {
		delete(m.claims, job)
		m.c.unclaim(job)
	}
}

// Cancel cancels the round: the trainers continue and send no state. m may be nil.
func (m *pauseRound) Cancel() {
	if m == nil {
		return
	}
	for _, p := range m.members {
		m.dismiss(p)
	}
}

// End stops the receipt of all answers. m may be nil.
func (m *pauseRound) End() {
	if m == nil {
		return
	}
	for _, p := range m.members {
		m.done(p)
	}
}

func (p *pausedTrainer) resume(send bool) error {
	return p.a.tell(&rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Release{Release: &rowraftv1.AttendRelease{Id: p.id,
		Send: send}}})
}

// Release lets the trainers continue after the cut. Each trainer confirms that it was stopped the whole time. So the
// cut has everything that it pushed before its pause and nothing that it pushed later.
func (m *pauseRound) Release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.c.patience.release)
	defer cancel()
	// The cut may contain pushes of a trainer that connected during the cut, but the checkpoint does not have its
	// state.
	for a := m.lateJoiner(); a != nil && !m.skip; a = m.lateJoiner() {
		err := rowraft.Errorf(rowraft.CodeNoLeader, "%s began during the cut", a.id)
		if !m.mayLeaveOut(ctx, a.id.Job, err) {
			return err
		}
		m.leaveOut(a.id.Job, err)
	}
	err := m.each(ctx, m.members, func(ctx context.Context, p *pausedTrainer) error {
		m.c.mu.Lock()
		if p.a.sending == nil {
			p.a.sending = make(map[uint64]*pausedTrainer)
		}
		p.a.sending[p.id] = p // before the message: the trainer may send its state at once
		m.c.mu.Unlock()
		if err := p.resume(true); err != nil {
			return rowraft.Errorf(rowraft.CodeNoLeader, "%s has disconnected: %w", p.a.id, err)
		}
		req, err := p.next(ctx)
		if err != nil {
			return err
		}
		if !req.GetReleased().GetHeld() {
			return rowraft.Errorf(rowraft.CodeNoLeader, "%s did not stay stopped until the cut", p.a.id)
		}
		p.pausedFor = time.Duration(req.GetReleased().GetPausedNs())
		return nil
	})
	for _, p := range m.members {
		m.unclaim(p)
	}
	return err
}

// lateJoiner returns a connected trainer that is not in the round, whose job trains and is not left out; nil if there
// is none.
func (m *pauseRound) lateJoiner() *trainer {
	for _, a := range m.c.list() {
		_, out := m.left[a.id.Job]
		if !out && !m.c.jobWaits(a.id.Job) && !slices.ContainsFunc(m.members,
			func(p *pausedTrainer) bool { return p.a == a }) {
			return a
		}
	}
	return nil
}
