package steps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// piecesAhead is the maximum number of pieces of a step that are proposed and not yet applied.
const piecesAhead = 4

// kickLocked starts to close the steps of j that can be closed, unless another goroutine does that.
// REQUIRES: s.mu is held.
func (s *Aggregator) kickLocked(j *job) {
	plan, err := s.machine.Jobs.Plan(j.id)
	if err != nil || !s.leads {
		return
	}
	s.startTimersLocked(j, &plan)
	if o, _ := j.ready(&plan); o == nil {
		return
	}
	if !j.token.TryAcquire(1) {
		return // the holder of the token checks again
	}
	s.wg.Go(func() { s.closeReady(j) })
}

// startTimersLocked starts the deadline of each step that has a whole part, if a worker with data to read has a whole
// part of that step or a later one. REQUIRES: s.mu is held.
func (s *Aggregator) startTimersLocked(j *job, plan *shard.JobPlan) {
	if plan.Deadline == 0 {
		return
	}
	for step, o := range j.open {
		if whole := o.whole(plan.Generation, &plan.Members); o.timer != nil || whole.Len() == 0 {
			continue
		}
		if busy := j.busy(step, plan); busy.Len() == 0 {
			continue
		}
		o.timer = time.AfterFunc(time.Duration(min(plan.Deadline, uint64(24*time.Hour))), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			o.due = true
			if s.jobs[j.id] == j {
				s.kickLocked(j)
			}
		})
	}
}

// enough reports whether the workers that have passed a step close it. Without a quorum all members must
// have passed it; with a quorum, that share of the members that are not idle.
func (j *job) enough(step rowraft.Step, plan *shard.JobPlan) bool {
	passed, members := j.passed(step, plan), plan.Members.Len()
	if plan.Needed >= members || passed.Len() == members {
		return passed.Len() >= plan.Needed
	}
	busy := j.busy(step, plan)
	left := members - (passed.Len() - busy.Len()) // not idle, or not known to be
	return busy.Len() >= max((plan.Needed*left+members-1)/members, 1)
}

// ready returns the lowest step, and the ranks whose parts close it, if it can be closed now.
func (j *job) ready(plan *shard.JobPlan) (*openStep, wire.RankSet) {
	if plan.Open.NextPiece > 0 {
		return j.readyOpenInLog(plan)
	}
	var o *openStep
	var with wire.RankSet
	for step, have := range j.open {
		// The next step closes a step without a whole part.
		if whole := have.whole(plan.Generation, &plan.Members); whole.Len() > 0 && (o == nil || step < o.step) {
			o, with = have, whole
		}
	}
	if o == nil {
		return nil, with
	}
	if !o.due && !j.enough(o.step, plan) {
		return nil, with
	}
	return o, with
}

// readyOpenInLog is ready for a step that is open in the log: its leader died after the first piece. It waits for
// exactly the contributors that the log names. A contributor that has pushed a later step does not send this one again.
func (j *job) readyOpenInLog(plan *shard.JobPlan) (*openStep, wire.RankSet) {
	o := j.open[plan.Open.Step]
	if o == nil { // no worker has sent its part again
		o = &openStep{step: plan.Open.Step}
	}
	with, gone := o.whole(plan.Generation, &plan.Members), j.passed(o.step+1, plan)
	for i, had := range plan.Open.Contributors {
		if had&^with[i]&^gone[i] != 0 {
			return nil, wire.RankSet{}
		}
		with[i] &= had
	}
	if with == (wire.RankSet{}) {
		with = plan.Open.Contributors // without parts of theirs
	}
	return o, with
}

// closeReady closes steps as long as one can be closed. It has j's token.
func (s *Aggregator) closeReady(j *job) {
	for {
		s.mu.Lock()
		plan, err := s.machine.Jobs.Plan(j.id)
		o, with := (*openStep)(nil), wire.RankSet{}
		if err == nil && s.leads && s.jobs[j.id] == j {
			o, with = j.ready(&plan)
		}
		if o == nil {
			j.token.Release(1) // under mu: a part that arrives now finds the token free
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		err = s.closeStep(j, o, &plan, with)
		s.mu.Lock()
		s.endLocked(j, o, err)
		if err == nil {
			s.endBelowLocked(j, o.step)
		}
		s.mu.Unlock()
	}
}

// endBelowLocked ends the steps that a later step has closed.
// REQUIRES: s.mu is held.
func (s *Aggregator) endBelowLocked(j *job, closed rowraft.Step) {
	for step, o := range j.open {
		if step <= closed {
			s.endLocked(j, o, nil)
		}
	}
}

// closeStep logs a step with the parts of some ranks and waits until it is applied. REQUIRES: j's token; the parts are
// whole.
func (s *Aggregator) closeStep(j *job, o *openStep, plan *shard.JobPlan, with wire.RankSet) error {
	s.mu.Lock()
	size := o.bytes // late parts may still arrive
	s.mu.Unlock()
	if err := s.leader.Enter(size); err != nil {
		return err
	}
	defer s.leader.Exit()
	m := Mean{Divisor: float32(with.Len()), AfterTable: plan.Open.Table, AfterKey: plan.Open.Key}
	base := wire.Step{Job: j.id, Generation: plan.Generation, Step: o.step, Piece: plan.Open.NextPiece, Contributors: with}
	s.mu.Lock()
	positions, err := o.addTo(&m, &with)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	var ahead []func() (*shard.Applied, error)
	await := func(n int) (err error) { // waits until at most n pieces are not applied
		for ; len(ahead) > n; ahead = ahead[1:] {
			err = errors.Join(err, s.pieceApplied(ahead[0]))
		}
		return err
	}
	err = m.Pieces(func(p Piece) error {
		step := base
		base.Piece++
		step.Payload, step.Last, step.AfterTable, step.AfterKey = p.Payload, p.Last, p.AfterTable, p.AfterKey
		if p.Last {
			step.Positions = positions
		}
		if err := await(piecesAhead - 1); err != nil {
			return err
		}
		ahead = append(ahead, s.leader.Propose(&step))
		return nil
	})
	return errors.Join(err, await(0))
}

// addTo adds the parts of some ranks to m, in the order of the ranks, and returns the positions that the workers have
// read. A rank without a part here contributes nothing. A part that was whole may be replaced meanwhile by one of a
// later generation that is not complete yet: addTo then returns an error, because its worker counts as a contributor.
func (o *openStep) addTo(m *Mean, with *wire.RankSet) (read []rowraft.Position, err error) {
	order := 0
	for r := range rowraft.Rank(rowraft.MaxRanks) {
		part := o.parts[r]
		if !with.Has(r) || part == nil {
			continue
		}
		if part.missing > 0 {
			return nil, &rowraft.OverloadedError{What: fmt.Sprintf("step %d: rank %d is sending its part again", o.step, r),
				Limit: "steps", RetryAfter: 20 * time.Millisecond}
		}
		for _, f := range part.fragments {
			if err := m.Add(f, order); err != nil {
				return nil, err
			}
			order++
		}
		read = append(read, part.positions...)
	}
	slices.SortFunc(read, func(a, b rowraft.Position) int {
		switch {
		case a.ID < b.ID || a.ID == b.ID && a.Offset > b.Offset:
			return -1
		case a.ID > b.ID || a.Offset < b.Offset:
			return 1
		}
		return 0
	})
	read = slices.CompactFunc(read, func(a, b rowraft.Position) bool { return a.ID == b.ID })
	return read[max(0, len(read)-wire.MaxJobPositions):], nil // apply would drop the others
}

// pieceApplied waits until a piece is applied.
func (s *Aggregator) pieceApplied(applied func() (*shard.Applied, error)) error {
	a, err := applied()
	if err != nil {
		return err
	}
	if a.Parts[0].Duplicate { // another leader has logged the piece
		return rowraft.Errorf(rowraft.CodeLeadershipLost, "shard %d: another leader closes the step", s.shard)
	}
	return a.Parts[0].Err
}

// ChangeMembers logs a membership by propose. Before that, it closes the steps below the membership's first step with
// the parts that are here.
func (s *Aggregator) ChangeMembers(ctx context.Context, w *wire.Membership,
	propose func(context.Context) (rowraft.Index, error)) (rowraft.Index, error) {
	s.mu.Lock()
	j := s.jobs[w.Job]
	if j == nil {
		j = newJob(w.Job)
		s.jobs[w.Job] = j
	}
	s.mu.Unlock()
	if err := j.token.Acquire(ctx, 1); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.jobs[w.Job] == j { // Acquire may have had the token for a moment, in which kickLocked did nothing
			s.kickLocked(j)
		}
		return 0, rowraft.Errorf(rowraft.CodeOverloaded, "shard %d: a step of the job is being closed: %w", s.shard, err)
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		j.token.Release(1)
		if s.jobs[w.Job] == j {
			s.kickLocked(j)
		}
	}()
	if err := s.closeOpenInLog(j, w); err != nil {
		return 0, err
	}
	if err := s.closeBelow(j, w); err != nil {
		return 0, err
	}
	index, err := propose(ctx)
	if err != nil {
		return 0, err
	}
	s.endStale(j)
	return index, nil
}

// closeOpenInLog closes the step that is open in the log, if there is one, before a membership ends it. The
// contributors of that step do not know its outcome. If they learned that it was closed without them, they would push
// gradients again, to a later step, that its first pieces already contain. So the membership waits until all
// contributors among its members have sent their parts here. closeOpenInLog has j's token.
func (s *Aggregator) closeOpenInLog(j *job, w *wire.Membership) error {
	now, err := s.machine.Jobs.Get(j.id)
	if err != nil || now.Open == nil || len(w.Members) == 0 {
		return nil
	}
	plan, err := s.machine.Jobs.Plan(j.id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	o := j.open[plan.Open.Step]
	if o == nil {
		o = &openStep{step: plan.Open.Step}
	}
	with, gone := o.whole(plan.Generation, &plan.Open.Contributors), j.passed(o.step+1, &plan)
	s.mu.Unlock()
	for _, m := range now.Members {
		if slices.Contains(w.Members, m.Member) && plan.Open.Contributors.Has(m.Rank) && !with.Has(m.Rank) &&
			!gone.Has(m.Rank) {
			return &rowraft.OverloadedError{
				What: fmt.Sprintf(
					"shard %d: step %d of job %x has pieces in the log, and rank %d has not sent its part again", s.shard, o.step,
					j.id[:4], m.Rank),
				Limit: "steps", RetryAfter: 50 * time.Millisecond,
			}
		}
	}
	if with.Len() == 0 { // all contributors have left; no worker waits for the step
		return nil
	}
	err = s.closeStep(j, o, &plan, with)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(j, o, err)
	if err == nil {
		s.endBelowLocked(j, o.step)
	}
	return err
}

// closeBelow closes the open steps below the first step of the coming membership. It has j's token.
func (s *Aggregator) closeBelow(j *job, w *wire.Membership) error {
	for {
		plan, err := s.machine.Jobs.Plan(j.id)
		if err != nil {
			return nil // a new job
		}
		s.mu.Lock()
		o := j.lowest()
		with := wire.RankSet{}
		if o != nil && o.step < w.First {
			with = o.whole(plan.Generation, &plan.Members)
			// no member of the membership waits for this step (see closeOpenInLog)
			if with.Len() == 0 || plan.Open.NextPiece > 0 {
				s.endLocked(j, o, &rowraft.StepClosedError{Shard: s.shard, Step: o.step, Next: w.First})
				s.mu.Unlock()
				continue
			}
		}
		s.mu.Unlock()
		if o == nil || o.step >= w.First {
			return nil
		}
		err = s.closeStep(j, o, &plan, with)
		s.mu.Lock()
		s.endLocked(j, o, err)
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// endStale ends the steps whose parts belong to generations other than the current one.
func (s *Aggregator) endStale(j *job) {
	plan, err := s.machine.Jobs.Plan(j.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.jobs[j.id] == j {
		delete(s.jobs, j.id) // no later job has this id
	}
	for step, o := range j.open {
		switch {
		case err != nil: // the job has ended
			s.endLocked(j, o, err)
		case step <= plan.LastClosed:
			s.endLocked(j, o, nil)
		default:
			have := rowraft.Generation(0)
			for _, p := range o.parts {
				have = p.generation
			}
			if have != plan.Generation {
				s.endLocked(j, o, &rowraft.StaleGenerationError{Shard: s.shard, Have: have, Want: plan.Generation,
					Next: plan.LastClosed + 1})
			}
		}
	}
}
