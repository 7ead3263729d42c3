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

// piecesAhead is the maximum number of pieces of a step that are proposed and not yet applied.
const piecesAhead = 4

// kickLocked starts to close the steps of j that can be closed, unless another goroutine does that.
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
		return // the holder of the token checks again
	}
	s.wg.Go(func() { s.closeReady(j) })
}

// startTimersLocked starts the deadline of each step that has a whole part, if a worker with data to read
// has a whole part of that step or a later one.
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

// enough reports whether the workers that have passed a step close it. Without a quorum all members must
// have passed it; with a quorum, that share of the members that are not idle.
func (j *jobSteps) enough(step rowraft.Step, plan *shard.JobPlan) bool {
	passed, members := j.passed(step, plan), plan.Members.Len()
	if plan.Needed >= members || passed.Len() == members {
		return passed.Len() >= plan.Needed
	}
	busy := j.busy(step, plan)
	left := members - (passed.Len() - busy.Len()) // not idle, or not known to be
	return busy.Len() >= max((plan.Needed*left+members-1)/members, 1)
}

// ready returns the lowest step, and the ranks whose parts close it, if it can be closed now.
func (j *jobSteps) ready(plan *shard.JobPlan) (*openStep, wire.RankSet) {
	if plan.Open.NextPiece > 0 {
		return j.readyAgain(plan)
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

// readyAgain is ready for a step that is open in the log: its leader died in the middle. It waits for
// exactly the contributors that the log names. A contributor that has pushed a later step does not send
// this one again.
func (j *jobSteps) readyAgain(plan *shard.JobPlan) (*openStep, wire.RankSet) {
	o := j.open[plan.Open.Step]
	if o == nil { // no worker has sent it again
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
func (s *steps) closeReady(j *jobSteps) {
	for {
		s.mu.Lock()
		plan, err := s.r.machine.JobPlan(j.id)
		o, with := (*openStep)(nil), wire.RankSet{}
		if err == nil && s.leads && s.jobs[j.id] == j {
			o, with = j.ready(&plan)
		}
		if o == nil {
			<-j.token // under mu: a part that arrives now finds the token free
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

// endBelowLocked answers the parts of steps that a later step has closed.
// REQUIRES: s.mu is held.
func (s *steps) endBelowLocked(j *jobSteps, closed rowraft.Step) {
	for step, o := range j.open {
		if step <= closed {
			s.endLocked(j, o, nil)
		}
	}
}

// closeStep logs a step with the parts of some ranks and waits until it is applied. REQUIRES: j's token;
// the parts are whole.
func (s *steps) closeStep(j *jobSteps, o *openStep, plan *shard.JobPlan, with wire.RankSet) error {
	s.mu.Lock()
	size := o.bytes // late parts may still arrive
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
	await := func(n int) (err error) { // waits until at most n futures are left
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

// gather adds the parts of some ranks to m, in the order of the ranks, and returns the positions that the
// workers have read. A rank without a part here contributes nothing. A part that was whole may be replaced
// meanwhile by one of a later generation that is not complete yet: gather then returns an error, because
// its worker counts as a contributor.
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
	return read[max(0, len(read)-wire.MaxJobPositions):], nil // apply would drop the others
}

// pieceApplied waits until a piece is applied.
func (s *steps) pieceApplied(f *raftstore.Future) error {
	a, err := s.r.answer(context.Background(), f)
	if err != nil {
		return err
	}
	if a.Parts[0].Duplicate { // another leader has logged the piece
		return rowraft.Errorf(rowraft.CodeLeadershipLost, "shard %d: another leader closes the step", s.r.shard)
	}
	return a.Parts[0].Err
}

// change logs a membership. Before that, it closes the steps below the membership's first step with the
// parts that are here.
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

// closeAgain closes the step that is open in the log, if there is one, before a membership ends it. The
// contributors of that step do not know its outcome. If they were told that it was closed without them,
// they would push gradients again, to a later step, that its first pieces already contain. So the
// membership waits until all contributors among its members have sent their parts here. closeAgain has j's
// token.
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
	if with.Len() == 0 { // all contributors have left, and ask no more
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
			if with.Len() == 0 || plan.Open.NextPiece > 0 { // no member of the membership waits for this step (see closeAgain)
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

// endStale answers the parts of generations other than the current one.
func (s *steps) endStale(j *jobSteps) {
	plan, err := s.r.machine.JobPlan(j.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.jobs[j.id] == j {
		delete(s.jobs, j.id) // the id never comes back
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
