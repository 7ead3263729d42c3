package steps

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

const (
	// stepHold is how long a call waits for its step before it returns Held. It is shorter than 500 ms, after which a
	// client without a reply looks for another leader.
	stepHold = 350 * time.Millisecond

	// maxStepBytes and maxHeldBytes limit what a shard's leader holds of open steps: of one step, and of all. A step that
	// is not the lowest one of its job may use half of maxHeldBytes. The lowest step of the job that has waited longest is
	// admitted above the limit, so that one step can always be closed. So the leader holds at most maxHeldBytes +
	// maxStepBytes, and the heads of that step's parts.
	maxStepBytes = 128 << 20
	maxHeldBytes = 256 << 20

	maxOpenSteps = 1024 // of one job

	// The size of a step, a part and a fragment without their contents.
	stepHeadBytes     = 512
	partHeadBytes     = 160
	fragmentHeadBytes = 24
	positionBytes     = 16

	// MaxFragments is the largest number of messages of a worker's part.
	MaxFragments = 1024
)

// Leader is the replica that leads the shard, as far as the aggregation needs it.
type Leader interface {
	// CheckMemory returns an error if the server has no memory for another step.
	CheckMemory() error
	// Enter waits while a checkpoint holds the entries of the shard back. Each Enter without an error needs one Exit.
	Enter(sizeBytes int) error
	Exit()
	// Propose appends one piece of a step to the log and returns at once. The returned function waits until the piece is
	// applied on this server.
	Propose(step *wire.Step) (applied func() (*shard.Applied, error))
}

// Aggregator holds the parts of open steps on the leader of a shard until they are closed. It is soft state: a worker
// sends a part again until it has a result, so a leader that loses the leadership drops everything.
//
// Goroutines: for each job, at most one goroutine at a time closes steps or changes the members: the one that holds the
// job's token. Stop waits for the goroutines that close steps.
//
// Lock order: a job's token before mu. mu is not held across a call of Leader, with the exception of CheckMemory, which
// does not wait.
type Aggregator struct {
	shard   rowraft.ShardID
	machine *shard.Machine
	leader  Leader
	wg      sync.WaitGroup // spawned under mu while leads is true, so that Stop never waits while it grows

	mu    sync.Mutex
	leads bool
	jobs  map[rowraft.JobID]*job
	held  int    // bytes
	begun uint64 // number of steps opened so far
	ended endedJobs

	// clocks is closed and replaced when clocks may have changed in the machine and a call waits for that.
	clocks  chan struct{}
	waiters atomic.Int32
}

// job is what the leader holds of one job.
type job struct {
	id    rowraft.JobID
	token *semaphore.Weighted // of 1: a mutex whose waiters honour their context
	open  map[rowraft.Step]*openStep
}

func newJob(id rowraft.JobID) *job {
	return &job{id: id, token: semaphore.NewWeighted(1), open: make(map[rowraft.Step]*openStep)}
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

// Push is one message of a worker: a fragment of its part of a step.
type Push struct {
	shard.StepPart
	Fragment, Fragments int
	Payload             []byte // the Aggregator keeps it
	Positions           []rowraft.Position
	Probe               bool // ask for the step without sending a fragment
	Idle                bool // the worker has no data to read
}

// Result is the result of a push without an error.
type Result struct {
	Outcome    Outcome
	WaitingFor int // members that have not pushed the step, if it is Held
}

// Outcome says what became of a fragment. The values are those of rowraft.v1.StepOutcome.
type Outcome uint8

const (
	Applied Outcome = iota + 1 // the step is closed
	Held                       // the fragment is here, the step is open
	Missing                    // of a probe: the fragment is not here
)

// New returns the Aggregator of a shard. It accepts nothing before Lead.
func New(id rowraft.ShardID, machine *shard.Machine, leader Leader) *Aggregator {
	return &Aggregator{shard: id, machine: machine, leader: leader, jobs: make(map[rowraft.JobID]*job),
		clocks: make(chan struct{})}
}

// Lead starts to hold parts, from an empty state.
func (s *Aggregator) Lead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leads = true
}

// Drop removes everything and returns err to the waiting calls. The calls that wait for a step that is being closed
// return when it is closed.
func (s *Aggregator) Drop(err error) {
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

// Stop is Drop, and waits until no step is being closed.
func (s *Aggregator) Stop() {
	s.Drop(rowraft.Errorf(rowraft.CodeClosing, "the server is stopping"))
	s.wg.Wait()
}

// endLocked ends o: the calls that wait for it return err.
// REQUIRES: s.mu is held.
func (s *Aggregator) endLocked(j *job, o *openStep, err error) {
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

// Push accepts one fragment and waits until its step is closed, for at most stepHold.
//
// Errors: CodeStarting if this replica does not lead; CodeOverloaded if there is no room for the fragment;
// CodeDeadline if ctx ends first; the errors of shard.Jobs.CheckStep.
func (s *Aggregator) Push(ctx context.Context, p *Push) (Result, error) {
	o, result, err := s.take(p)
	if err != nil || o == nil {
		return result, err
	}
	hold := time.NewTimer(stepHold)
	defer hold.Stop()
	select {
	case <-o.done:
	case <-hold.C:
		return Result{Held, s.waitingFor(p, o)}, nil
	case <-ctx.Done():
		return Result{}, rowraft.Errorf(rowraft.CodeDeadline, "the caller left before the step was closed: %w",
			context.Cause(ctx))
	}
	if o.err != nil {
		return Result{}, o.err
	}
	applied, err := s.machine.Jobs.CheckStep(&p.StepPart)
	if err == nil && !applied {
		err = rowraft.Errorf(rowraft.CodeLeadershipLost,
			"shard %d: step %d was closed here and the state machine does not have it: another leader has changed the log",
			s.shard, p.Step)
	}
	return Result{Outcome: Applied}, err
}

// take adds a fragment to its step. It returns the step to wait for, or the result if there is one already.
func (s *Aggregator) take(p *Push) (*openStep, Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.leads {
		return nil, Result{}, rowraft.Errorf(rowraft.CodeStarting, "shard %d: this server does not lead, or not yet", s.shard)
	}
	// This check runs under mu: a step is closed in the machine before it ends here, so no part is lost between.
	applied, err := s.machine.Jobs.CheckStep(&p.StepPart)
	if err != nil || applied {
		return nil, Result{Outcome: Applied}, err
	}
	j := s.jobs[p.Job]
	if j == nil {
		j = newJob(p.Job)
		s.jobs[p.Job] = j
	}
	o := j.open[p.Step]
	if p.Probe {
		if o == nil || !o.has(p) || o.parts[p.Rank].missing > 0 {
			return nil, Result{Outcome: Missing}, nil
		}
		return o, Result{}, nil
	}
	if o == nil || !o.has(p) {
		if o, err = s.addLocked(j, p); err != nil {
			return nil, Result{}, err
		}
		s.kickLocked(j)
	}
	if o.parts[p.Rank].missing > 0 {
		return nil, Result{Outcome: Held}, nil // the step waits for this worker
	}
	return o, Result{}, nil
}

func (o *openStep) has(p *Push) bool {
	part := o.parts[p.Rank]
	return part != nil && part.generation == p.Generation && len(part.fragments) == p.Fragments &&
		part.fragments[p.Fragment] != nil
}

// addLocked holds a part that is not held yet.
// REQUIRES: s.mu is held, and p was checked.
func (s *Aggregator) addLocked(j *job, p *Push) (*openStep, error) {
	o := j.open[p.Step]
	size, heads := len(p.Payload), positionBytes*len(p.Positions)
	if o == nil {
		if err := s.leader.CheckMemory(); err != nil { // a step that has begun is completed in any case
			return nil, err
		}
		o = &openStep{step: p.Step, begun: s.begun + 1, parts: make(map[rowraft.Rank]*rankPart),
			rates: make(map[rowraft.TableID]wire.Segment), done: make(chan struct{})}
		heads += stepHeadBytes
	}
	part := o.parts[p.Rank]
	begins := part == nil || part.generation != p.Generation || len(part.fragments) != p.Fragments
	if begins {
		heads += partHeadBytes + fragmentHeadBytes*p.Fragments
	}
	limit := maxHeldBytes
	if low := j.lowest(); low != nil && low.step < p.Step {
		limit = maxHeldBytes / 2
		if j.open[p.Step] == nil && len(j.open) >= maxOpenSteps {
			limit = 0
		}
	}
	if o.bytes+size > maxStepBytes {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"shard %d: the parts of step %d take more than %d MiB: use smaller batches, or more shards", s.shard, p.Step,
			maxStepBytes>>20)
	}
	if s.held+size+heads > limit && !s.nextLocked(j, p.Step) {
		return nil, &rowraft.OverloadedError{What: "the shard holds as many gradients of open steps as it can",
			Limit: "steps", RetryAfter: 20 * time.Millisecond}
	}
	if err := o.sameRates(p.Payload); err != nil {
		return nil, err
	}
	if begins {
		if part != nil { // the part is of an earlier generation, or has another number of fragments
			for _, f := range part.fragments {
				o.bytes, s.held = o.bytes-len(f), s.held-len(f)
			}
		}
		part = &rankPart{generation: p.Generation, fragments: make([][]byte, p.Fragments), missing: p.Fragments, idle: p.Idle}
		o.parts[p.Rank] = part
	}
	part.fragments[p.Fragment] = p.Payload[:size:size]
	if p.Payload == nil {
		part.fragments[p.Fragment] = []byte{}
	}
	if len(p.Positions) > 0 {
		part.positions = p.Positions
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
func (s *Aggregator) nextLocked(j *job, step rowraft.Step) bool {
	var first *job
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
			return rowraft.Errorf(rowraft.CodeInvalidArgument,
				"table %#x, step %d: learning rate %v, another worker has pushed with %v (0: the table's own)", uint64(seg.Table),
				o.step, seg.LR, have.LR)
		}
		o.rates[seg.Table] = wire.Segment{Flags: seg.Flags, LR: seg.LR}
	}
	return nil
}

// whole lists the ranks of within that have complete parts of a generation. Parts of a later generation
// belong to a step that is open in the log (shard.Jobs.CheckStep).
func (o *openStep) whole(generation rowraft.Generation, within *wire.RankSet) (all wire.RankSet) {
	for rank, part := range o.parts {
		if part.missing == 0 && part.generation >= generation && within.Has(rank) {
			all.Add(rank)
		}
	}
	return all
}

// waitingFor returns the number of members that have not pushed o, or a later step.
func (s *Aggregator) waitingFor(p *Push, o *openStep) int {
	plan, err := s.machine.Jobs.Plan(p.Job)
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
func (j *job) passed(step rowraft.Step, plan *shard.JobPlan) (all wire.RankSet) {
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
func (j *job) busy(step rowraft.Step, plan *shard.JobPlan) (all wire.RankSet) {
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

// Progress returns the highest step of a job that has parts here or pieces in the log, and the ranks that have not
// pushed the lowest step held.
func (s *Aggregator) Progress(id rowraft.JobID) (highest rowraft.Step, missing []rowraft.Rank) {
	plan, err := s.machine.Jobs.Plan(id)
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
func (j *job) lowest() (o *openStep) {
	for step, have := range j.open {
		if o == nil || step < o.step {
			o = have
		}
	}
	return o
}

// EntryApplied wakes the calls that wait for a clock, after an entry was applied.
func (s *Aggregator) EntryApplied() {
	if s.waiters.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.clocks)
	s.clocks = make(chan struct{})
}

// WaitClock returns the slowest clock of a job when it has reached atLeast, or its current value after stepHold.
func (s *Aggregator) WaitClock(ctx context.Context, id rowraft.JobID, atLeast uint64) (uint64, error) {
	hold := time.NewTimer(stepHold)
	defer hold.Stop()
	s.waiters.Add(1)
	defer s.waiters.Add(-1)
	for {
		s.mu.Lock()
		changed := s.clocks
		s.mu.Unlock()
		slowest, err := s.machine.Jobs.SlowestClock(id)
		if err != nil || slowest >= atLeast {
			return slowest, err
		}
		select {
		case <-changed:
		case <-hold.C:
			return slowest, nil
		case <-ctx.Done():
			return 0, rowraft.Errorf(rowraft.CodeDeadline, "the caller left before the clock was reached: %w",
				context.Cause(ctx))
		}
	}
}
