package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// piecesAhead is how many pieces of a step may be proposed and not yet applied.
const piecesAhead = 4

// kickLocked starts to close what can be closed of j, if nobody is at it.
// REQUIRES: s.mu is held.
func (s *steps) kickLocked(j *jobSteps) {
	plan, err := s.r.machine.JobPlan(j.id)
	if err != nil || !s.leads {
		return
	}
	s.startTimersLocked(j, &plan)
	if o, _ := j.ready(&plan); o == nil {
		return
	}
	select {
	case j.token <- struct{}{}:
	default:
		return // whoever has it looks again
	}
	s.wg.Go(func() { s.closeReady(j) })
}

// startTimersLocked starts the deadline of each step with a whole part, if it, or a later one, has
// that of a worker with something to read.
func (s *steps) startTimersLocked(j *jobSteps, plan *shard.JobPlan) {
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

// enough reports whether those who have passed a step close it: all members do, and where there is a
// quorum that share of the members that are not idle.
func (j *jobSteps) enough(step rowraft.Step, plan *shard.JobPlan) bool {
	passed, members := j.passed(step, plan), plan.Members.Len()
	if plan.Needed >= members || passed.Len() == members {
		return passed.Len() >= plan.Needed
	}
	busy := j.busy(step, plan)
	left := members - (passed.Len() - busy.Len()) // that are not idle, or not known to be
	return busy.Len() >= max((plan.Needed*left+members-1)/members, 1)
}

// ready returns the lowest step and whose parts close it, if it can be closed now.
func (j *jobSteps) ready(plan *shard.JobPlan) (*openStep, wire.RankSet) {
	if plan.Open.NextPiece > 0 {
		return j.readyAgain(plan)
	}
	var o *openStep
	var with wire.RankSet
	for step, have := range j.open {
		// A step with nothing whole is closed by the next one.
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

// readyAgain is ready for a step that is open in the log: its leader died in the
// middle. It has those who contributed before, and no others; who has pushed a later
// step does not come back to it.
func (j *jobSteps) readyAgain(plan *shard.JobPlan) (*openStep, wire.RankSet) {
	o := j.open[plan.Open.Step]
	if o == nil { // nobody has sent it again
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
		with = plan.Open.Contributors // and nothing of theirs
	}
	return o, with
}

// closeReady closes steps as long as there is one that can be. It has j's token.
func (s *steps) closeReady(j *jobSteps) {
	for {
		s.mu.Lock()
		plan, err := s.r.machine.JobPlan(j.id)
		o, with := (*openStep)(nil), wire.RankSet{}
		if err == nil && s.leads && s.jobs[j.id] == j {
			o, with = j.ready(&plan)
		}
		if o == nil {
			<-j.token // under mu: a part that comes now finds it free
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

// endBelowLocked answers the parts of steps that a later one has closed.
// REQUIRES: s.mu is held.
func (s *steps) endBelowLocked(j *jobSteps, closed rowraft.Step) {
	for step, o := range j.open {
		if step <= closed {
			s.endLocked(j, o, nil)
		}
	}
}

// closeStep logs a step with the parts of some ranks and waits until it is applied.
// REQUIRES: j's token; the parts are whole.
func (s *steps) closeStep(j *jobSteps, o *openStep, plan *shard.JobPlan, with wire.RankSet) error {
	s.mu.Lock()
	size := o.bytes // late parts may still come
	s.mu.Unlock()
	if err := s.r.gate.enter(s.r.ctx, size); err != nil {
		return err
	}
	defer s.r.gate.leave()
	m := mean{divisor: float32(with.Len()), limit: rowraft.TargetEntryBytes - 4096, afterTable: plan.Open.Table, afterKey: plan.Open.Key}
	base := wire.Step{Job: j.id, Generation: plan.Generation, Step: o.step, Piece: plan.Open.NextPiece, Contributors: with}
	s.mu.Lock()
	positions, err := o.gather(&m, &with)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	var ahead []*raftstore.Future
	await := func(n int) (err error) { // until at most n are left
		for ; len(ahead) > n; ahead = ahead[1:] {
			err = errors.Join(err, s.pieceApplied(ahead[0]))
		}
		return err
	}
	err = m.pieces(func(p meanPiece) error {
		step := base
		base.Piece++
		step.Payload, step.Last, step.AfterTable, step.AfterKey = p.payload, p.last, p.afterTable, p.afterKey
		if p.last {
			step.Positions = positions
		}
		if err := await(piecesAhead - 1); err != nil {
			return err
		}
		buf := rpc.Pool.Get(step.Size())
		defer rpc.Pool.Put(buf)
		ahead = append(ahead, s.r.group.Propose(wire.AppendStepEntry((*buf)[:0], s.r.header(), &step)))
		return nil
	})
	return errors.Join(err, await(0))
}

// gather adds the parts of some ranks to m, in the order of the ranks, and returns how
// far they have read. Who has none here contributes nothing. One that is being sent again,
// of a later generation, since it was found whole must be waited for: its worker counts as
// a contributor.
func (o *openStep) gather(m *mean, with *wire.RankSet) (read []rowraft.Position, err error) {
	order := 0
	for r := range rowraft.Rank(rowraft.MaxRanks) {
		part := o.parts[r]
		if !with.Has(r) || part == nil {
			continue
		}
		if part.missing > 0 {
			return nil, &rowraft.OverloadedError{What: fmt.Sprintf("step %d: rank %d is sending its part again", o.step, r), RetryAfter: 20 * time.Millisecond}
		}
		for _, f := range part.fragments {
			if err := m.add(f, order); err != nil {
				return nil, err
			}
			order++
		}
		read = append(read, part.positions...)
	}
	slices.SortFunc(read, func(a, b rowraft.Position) int {
		switch {
		case a.Part < b.Part || a.Part == b.Part && a.Offset > b.Offset:
			return -1
		case a.Part > b.Part || a.Offset < b.Offset:
			return 1
		}
		return 0
	})
	read = slices.CompactFunc(read, func(a, b rowraft.Position) bool { return a.Part == b.Part })
	return read[max(0, len(read)-wire.MaxJobPositions):], nil // apply would forget the others
}

// pieceApplied waits until a piece is applied.
func (s *steps) pieceApplied(f *raftstore.Future) error {
	a, err := s.r.answer(context.Background(), f)
	if err != nil {
		return err
	}
	if a.Parts[0].Duplicate { // another leader has been at it
		return rowraft.Errorf(rowraft.CodeLeadershipLost, "shard %d: another leader closes the step", s.r.shard)
	}
	return a.Parts[0].Err
}

// change logs a membership after it has closed the steps below its first one, with
// the parts there are.
func (s *steps) change(ctx context.Context, w *wire.Membership, propose func(context.Context) (rowraft.Index, error)) (rowraft.Index, error) {
	s.mu.Lock()
	j := s.jobs[w.Job]
	if j == nil {
		j = &jobSteps{id: w.Job, token: make(chan struct{}, 1), open: make(map[rowraft.Step]*openStep)}
		s.jobs[w.Job] = j
	}
	s.mu.Unlock()
	select {
	case j.token <- struct{}{}:
	case <-ctx.Done():
		return 0, rowraft.Errorf(rowraft.CodeOverloaded, "shard %d: a step of the job is being closed: %w", s.r.shard, ctx.Err())
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		<-j.token
		if s.jobs[w.Job] == j {
			s.kickLocked(j)
		}
	}()
	if err := s.closeAgain(j, w); err != nil {
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

// closeAgain closes the step that is open in the log, if there is one, before a membership
// ends it. Its contributors do not know what has become of their parts: told that it was closed
// without them they would push again, to a later step, what is in its first pieces. So the membership
// waits until all of them that are in it have sent their parts here. It has j's token.
func (s *steps) closeAgain(j *jobSteps, w *wire.Membership) error {
	now, err := s.r.machine.Job(j.id)
	if err != nil || now.Open == nil || len(w.Members) == 0 {
		return nil
	}
	plan, err := s.r.machine.JobPlan(j.id)
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
		if slices.Contains(w.Members, m.Member) && plan.Open.Contributors.Has(m.Rank) && !with.Has(m.Rank) && !gone.Has(m.Rank) {
			return &rowraft.OverloadedError{
				What:       fmt.Sprintf("shard %d: step %d of job %x has pieces in the log, and rank %d has not sent its part again", s.r.shard, o.step, j.id[:4], m.Rank),
				RetryAfter: 50 * time.Millisecond,
			}
		}
	}
	if with.Len() == 0 { // all are gone, and ask no more
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

// closeBelow closes what is open below the first step of a membership that is to
// come. It has j's token.
func (s *steps) closeBelow(j *jobSteps, w *wire.Membership) error {
	for {
		plan, err := s.r.machine.JobPlan(j.id)
		if err != nil {
			return nil // a new job
		}
		s.mu.Lock()
		o := j.lowest()
		with := wire.RankSet{}
		if o != nil && o.step < w.First {
			with = o.whole(plan.Generation, &plan.Members)
			if with.Len() == 0 || plan.Open.NextPiece > 0 { // nobody who is in the step asks (closeAgain)
				s.endLocked(j, o, &rowraft.StepClosedError{Shard: s.r.shard, Step: o.step, Next: w.First})
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

// endStale answers the parts of another generation than the present one.
func (s *steps) endStale(j *jobSteps) {
	plan, err := s.r.machine.JobPlan(j.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.jobs[j.id] == j {
		delete(s.jobs, j.id) // its id never comes back
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
				s.endLocked(j, o, &rowraft.StaleGenerationError{Shard: s.r.shard, Have: have, Want: plan.Generation, Next: plan.LastClosed + 1})
			}
		}
	}
}
