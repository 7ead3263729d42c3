package node

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

const (
	// stepHold is how long a call waits for its step before the answer that its part is held. It is shorter
	// than 500 ms, after which a client without an answer looks for another leader.
	stepHold = 350 * time.Millisecond

	// maxStepBytes and maxHeldBytes limit what a shard's leader holds of open steps: of one step, and of
	// all. A step that is not the lowest one of its job may use half of them. The lowest step of the job
	// that has waited longest is admitted above the limit, so that one step can always be closed. So at
	// most maxHeldBytes + maxStepBytes, and the heads of that step's parts, are held.
	maxStepBytes = 128 << 20
	maxHeldBytes = 256 << 20

	maxOpenSteps = 1024 // of one job

	// The size of a step, a part and a fragment without their contents.
	stepHeadBytes     = 512
	partHeadBytes     = 160
	fragmentHeadBytes = 24
	positionBytes     = 16

	// maxFragments is the maximum number of messages of a worker's part.
	maxFragments = 1024
)

// steps holds the parts of open steps on the leader of a shard until they are closed
// (docs/formats/steps.md). It is soft state: a worker sends a part again until it has an answer, so a
// leader that loses the leadership drops everything.
//
// Goroutines: for each job, at most one goroutine at a time closes steps or changes the membership: the one
// with the job's token. stop waits for the goroutines that close steps.
type steps struct {
	r  *replica
	wg sync.WaitGroup // spawned under mu while leads is true, so that stop never waits while it grows

	mu    sync.Mutex
	leads bool
	jobs  map[rowraft.JobID]*jobSteps
	held  int    // bytes
	begun uint64 // number of steps opened so far
	ended endedJobs

	// clocks is closed and replaced when clocks may have changed in the machine and a call waits for that.
	clocks  chan struct{}
	waiters atomic.Int32
}

// jobSteps is what the leader holds of one job.
type jobSteps struct {
	id    rowraft.JobID
	token chan struct{} // capacity 1; empty: free
	open  map[rowraft.Step]*openStep
}

// openStep is a step that is not closed.
type openStep struct {
	step  rowraft.Step
	begun uint64 // order of first parts, over the steps of all jobs here
	parts map[rowraft.Rank]*rankPart
	rates map[rowraft.TableID]wire.Segment // flags and learning rate that all segments of a table must have
	bytes int                              // of payloads
	heads int                              // bytes of everything else
	timer *time.Timer                      // fires at the deadline; nil before the first whole part, or without a deadline
	due   bool                             // the deadline has passed

	done chan struct{} // closed when err is set
	err  error         // nil: the machine has the outcome
}

// rankPart is what one worker has pushed.
type rankPart struct {
	generation rowraft.Generation
	fragments  [][]byte // nil: missing
	missing    int
	positions  []rowraft.Position
	idle       bool
}

// stepPush is one call of PushStep.
type stepPush struct {
	shard.StepPart
	fragment, fragments int
	payload             []byte // steps keeps it
	positions           []rowraft.Position
	probe               bool
	idle                bool // the worker has no data to read
}

// stepAnswer is the answer to a call without an error.
type stepAnswer struct {
	outcome    stepOutcome
	waitingFor int
}

type stepOutcome uint8

const (
	stepApplied stepOutcome = iota + 1
	stepHeld
	stepMissing
)

func newSteps(r *replica) *steps {
	return &steps{r: r, jobs: make(map[rowraft.JobID]*jobSteps), clocks: make(chan struct{})}
}

// lead starts to hold parts, from an empty state.
func (s *steps) lead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leads = true
}

// drop removes everything and returns err to the waiting calls. A step that is being closed answers its
// calls when it is closed.
func (s *steps) drop(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leads = false
	for _, j := range s.jobs {
		for _, o := range j.open {
			s.endLocked(j, o, err)
		}
	}
	clear(s.jobs)
}

// stop is drop, and waits until no step is being closed.
func (s *steps) stop() {
	s.drop(rowraft.Errorf(rowraft.CodeClosing, "the server is stopping"))
	s.wg.Wait()
}

// endLocked answers the calls that wait for o.
// REQUIRES: s.mu is held.
func (s *steps) endLocked(j *jobSteps, o *openStep, err error) {
	if j.open[o.step] != o {
		return
	}
	delete(j.open, o.step)
	s.held -= o.bytes + o.heads
	if o.timer != nil {
		o.timer.Stop()
	}
	o.err = err
	close(o.done)
}

// push accepts one part and waits for its step, for at most stepHold.
func (s *steps) push(ctx context.Context, p *stepPush) (stepAnswer, error) {
	o, answer, err := s.take(p)
	if err != nil || o == nil {
		return answer, err
	}
	hold := time.NewTimer(stepHold)
	defer hold.Stop()
	select {
	case <-o.done:
	case <-hold.C:
		return stepAnswer{stepHeld, s.waitingFor(p, o)}, nil
	case <-ctx.Done():
		return stepAnswer{}, rowraft.Errorf(rowraft.CodeDeadline, "the caller left before the step was closed: %w", context.Cause(ctx))
	}
	if o.err != nil {
		return stepAnswer{}, o.err
	}
	applied, err := s.r.machine.CheckStep(&p.StepPart)
	if err == nil && !applied {
		err = rowraft.Errorf(rowraft.CodeLeadershipLost, "shard %d: step %d is not closed, though it was", s.r.shard, p.Step)
	}
	return stepAnswer{outcome: stepApplied}, err
}

// take adds a part to its step. It returns the step to wait for, or the answer if there is one already.
func (s *steps) take(p *stepPush) (*openStep, stepAnswer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.leads {
		return nil, stepAnswer{}, rowraft.Errorf(rowraft.CodeStarting, "shard %d: this server does not lead, or not yet", s.r.shard)
	}
	// This check runs under mu: a step is closed in the machine before it ends here, so no part falls
	// between.
	applied, err := s.r.machine.CheckStep(&p.StepPart)
	if err != nil || applied {
		return nil, stepAnswer{outcome: stepApplied}, err
	}
	j := s.jobs[p.Job]
	if j == nil {
		j = &jobSteps{id: p.Job, token: make(chan struct{}, 1), open: make(map[rowraft.Step]*openStep)}
		s.jobs[p.Job] = j
	}
	o := j.open[p.Step]
	if p.probe {
		if o == nil || !o.has(p) || o.parts[p.Rank].missing > 0 {
			return nil, stepAnswer{outcome: stepMissing}, nil
		}
		return o, stepAnswer{}, nil
	}
	if o == nil || !o.has(p) {
		if o, err = s.addLocked(j, p); err != nil {
			return nil, stepAnswer{}, err
		}
		s.kickLocked(j)
	}
	if o.parts[p.Rank].missing > 0 {
		return nil, stepAnswer{outcome: stepHeld}, nil // the step waits for this worker
	}
	return o, stepAnswer{}, nil
}

func (o *openStep) has(p *stepPush) bool {
	part := o.parts[p.Rank]
	return part != nil && part.generation == p.Generation && len(part.fragments) == p.fragments && part.fragments[p.fragment] != nil
}

// addLocked holds a part that is not held yet.
// REQUIRES: s.mu is held, and p was checked.
func (s *steps) addLocked(j *jobSteps, p *stepPush) (*openStep, error) {
	o := j.open[p.Step]
	size, heads := len(p.payload), positionBytes*len(p.positions)
	if o == nil {
		if err := s.r.admit.RoomForRows(); err != nil { // a step that has begun is completed in any case
			return nil, err
		}
		o = &openStep{step: p.Step, begun: s.begun + 1, parts: make(map[rowraft.Rank]*rankPart), rates: make(map[rowraft.TableID]wire.Segment), done: make(chan struct{})}
		heads += stepHeadBytes
	}
	part := o.parts[p.Rank]
	begins := part == nil || part.generation != p.Generation || len(part.fragments) != p.fragments
	if begins {
		heads += partHeadBytes + fragmentHeadBytes*p.fragments
	}
	limit := maxHeldBytes
	if low := j.lowest(); low != nil && low.step < p.Step {
		limit = maxHeldBytes / 2
		if j.open[p.Step] == nil && len(j.open) >= maxOpenSteps {
			limit = 0
		}
	}
	if o.bytes+size > maxStepBytes {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "shard %d: the parts of step %d take more than %d MiB: use smaller batches, or more shards", s.r.shard, p.Step, maxStepBytes>>20)
	}
	if s.held+size+heads > limit && !s.nextLocked(j, p.Step) {
		return nil, &rowraft.OverloadedError{What: "the shard holds as many gradients of open steps as it can", RetryAfter: 20 * time.Millisecond}
	}
	if err := o.sameRates(p.payload); err != nil {
		return nil, err
	}
	if begins {
		if part != nil { // the part is of an earlier generation, or has another number of fragments
			for _, f := range part.fragments {
				o.bytes, s.held = o.bytes-len(f), s.held-len(f)
			}
		}
		part = &rankPart{generation: p.Generation, fragments: make([][]byte, p.fragments), missing: p.fragments, idle: p.idle}
		o.parts[p.Rank] = part
	}
	part.fragments[p.fragment] = p.payload[:size:size]
	if p.payload == nil {
		part.fragments[p.fragment] = []byte{}
	}
	if len(p.positions) > 0 {
		part.positions = p.positions
	}
	part.missing--
	o.bytes, o.heads, s.held = o.bytes+size, o.heads+heads, s.held+size+heads
	s.begun = max(s.begun, o.begun)
	j.open[p.Step] = o
	return o, nil
}

// nextLocked reports whether a step of j must be closed before there is space for others: the lowest step
// of the job whose open steps began first.
// REQUIRES: s.mu is held.
func (s *steps) nextLocked(j *jobSteps, step rowraft.Step) bool {
	var first *jobSteps
	begun := uint64(0)
	for _, other := range s.jobs {
		for _, o := range other.open {
			if first == nil || o.begun < begun {
				first, begun = other, o.begun
			}
		}
	}
	low := j.lowest()
	return first == j && low != nil && step <= low.step
}

// sameRates refuses a segment with another learning rate than the other segments of its table. It records
// the rate of a table's first segment.
func (o *openStep) sameRates(payload []byte) error {
	for rest := payload; len(rest) > 0; {
		seg, _, next, err := wire.ParseSegment(rest)
		if err != nil {
			return err
		}
		rest = next
		have, ok := o.rates[seg.Table]
		if ok && (have.Flags != seg.Flags || have.LR != seg.LR) {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %#x, step %d: learning rate %v, another worker has pushed with %v (0: the table's own)", uint64(seg.Table), o.step, seg.LR, have.LR)
		}
		o.rates[seg.Table] = wire.Segment{Flags: seg.Flags, LR: seg.LR}
	}
	return nil
}

// whole lists the ranks of within that have complete parts of a generation. Parts of a later generation
// belong to a step that is open in the log (shard.Machine.CheckStep).
func (o *openStep) whole(generation rowraft.Generation, within *wire.RankSet) (all wire.RankSet) {
	for rank, part := range o.parts {
		if part.missing == 0 && part.generation >= generation && within.Has(rank) {
			all.Add(rank)
		}
	}
	return all
}

// waitingFor returns the number of members that have not pushed o, or a later step.
func (s *steps) waitingFor(p *stepPush, o *openStep) int {
	plan, err := s.r.machine.JobPlan(p.Job)
	if err != nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	there := wire.RankSet{}
	if j := s.jobs[p.Job]; j != nil {
		there = j.passed(o.step, &plan)
	}
	return plan.Members.Len() - there.Len()
}

// passed returns the members with a whole part of step, or of a later one. They push nothing more that step
// waits for.
func (j *jobSteps) passed(step rowraft.Step, plan *shard.JobPlan) (all wire.RankSet) {
	for at, o := range j.open {
		if at < step {
			continue
		}
		whole := o.whole(plan.Generation, &plan.Members)
		for i := range all {
			all[i] |= whole[i]
		}
	}
	return all
}

// busy returns the members of passed that had data to read.
func (j *jobSteps) busy(step rowraft.Step, plan *shard.JobPlan) (all wire.RankSet) {
	for at, o := range j.open {
		if at < step {
			continue
		}
		whole := o.whole(plan.Generation, &plan.Members)
		for rank, part := range o.parts {
			if whole.Has(rank) && !part.idle {
				all.Add(rank)
			}
		}
	}
	return all
}

// highestOpen returns the highest step of a job that has parts here or pieces in the log, and the ranks
// that have not pushed the lowest step held.
func (s *steps) highestOpen(id rowraft.JobID) (highest rowraft.Step, missing []rowraft.Rank) {
	plan, err := s.r.machine.JobPlan(id)
	if err != nil {
		return 0, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.jobs[id]
	highest = plan.Open.Step
	if j == nil || len(j.open) == 0 {
		return highest, nil
	}
	lowest := j.lowest()
	for step := range j.open {
		highest = max(highest, step)
	}
	there := j.passed(lowest.step, &plan)
	for r := range rowraft.Rank(rowraft.MaxRanks) {
		if plan.Members.Has(r) && !there.Has(r) {
			missing = append(missing, r)
		}
	}
	return highest, missing
}

// lowest returns the lowest open step, or nil.
func (j *jobSteps) lowest() (o *openStep) {
	for step, have := range j.open {
		if o == nil || step < o.step {
			o = have
		}
	}
	return o
}

// changed wakes the calls that wait for a clock, after an entry was applied.
func (s *steps) changed() {
	if s.waiters.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.clocks)
	s.clocks = make(chan struct{})
}

// waitClock returns the slowest clock of a job when it has reached atLeast, or its current value after
// stepHold.
func (s *steps) waitClock(ctx context.Context, id rowraft.JobID, atLeast uint64) (uint64, error) {
	hold := time.NewTimer(stepHold)
	defer hold.Stop()
	s.waiters.Add(1)
	defer s.waiters.Add(-1)
	for {
		s.mu.Lock()
		changed := s.clocks
		s.mu.Unlock()
		slowest, err := s.r.machine.SlowestClock(id)
		if err != nil || slowest >= atLeast {
			return slowest, err
		}
		select {
		case <-changed:
		case <-hold.C:
			return slowest, nil
		case <-ctx.Done():
			return 0, rowraft.Errorf(rowraft.CodeDeadline, "the caller left before the clock was reached: %w", context.Cause(ctx))
		}
	}
}
