package shard

import (
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/wire"
)

// applyStep applies one piece of a step. It applies each row once, even if several leaders send the
// piece. The error is fatal.
func (m *Machine) applyStep(h wire.EntryHeader, body []byte, a *Applied) error {
	s, err := wire.ParseStep(body)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.tick(h)
	duplicate, result := false, m.checkEpoch(m.shard, h)
	var open OpenStep
	if result == nil {
		duplicate, open, result = m.Jobs.table.list.checkStep(m.shard, &s)
	}
	m.mu.Unlock()
	if result == nil && !duplicate {
		result = m.Validate(wire.OpPush, s.Payload)
	}
	if result == nil && !duplicate {
		result = advanceRows(s.Payload, &open)
	}
	a.Parts = []PartResult{{Err: result, Duplicate: duplicate}}
	if result != nil || duplicate {
		return nil
	}
	if err := m.applyRows(&wire.Part{Op: wire.OpPush, Payload: s.Payload}); err != nil {
		return err
	}
	m.Jobs.advance(&s, &open)
	return nil
}

// advance records that piece s of a step is applied. open is what the job has of the step with it.
// Only the apply goroutine calls it.
func (t *Jobs) advance(s *wire.Step, open *OpenStep) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, _ := t.table.list.find(s.Job)
	j := t.table.own(at)
	setPositions(j, s.Positions)
	if !s.Last {
		open.Step, open.NextPiece, open.Contributors = s.Step, s.Piece+1, s.Contributors
		j.Open = open
		return
	}
	j.Open, j.LastClosed = nil, s.Step
	if n := len(j.Closed) - checkpoint.ClosedSteps + 1; n > 0 {
		j.Closed = append(j.Closed[:0], j.Closed[n:]...)
	}
	j.Closed = append(j.Closed, ClosedStep{Step: s.Step, Contributors: s.Contributors})
}

// checkStep returns the reason why a piece is not the next one of its job, or nil. duplicate means
// that the piece was applied before. open is what the job already has of the step.
func (t jobs) checkStep(shard rowraft.ShardID, s *wire.Step) (duplicate bool, open OpenStep, err error) {
	j, err := t.get(s.Job)
	if err != nil {
		return false, open, err
	}
	if j.Generation != s.Generation {
		return false, open, &rowraft.StaleGenerationError{
			Shard: shard, Have: s.Generation, Want: j.Generation, Next: j.LastClosed + 1,
		}
	}
	if j.Open != nil {
		open = *j.Open
	}
	switch {
	case s.Step <= j.LastClosed, s.Step < open.Step, s.Step == open.Step && s.Piece < open.NextPiece:
		return true, open, nil
	case s.Piece != open.NextPiece, open.NextPiece > 0 && s.Step != open.Step, s.AfterTable != open.Table,
		s.AfterKey != open.Key:
		return false, open, rowraft.Errorf(rowraft.CodePrecondition,
			"shard %d: piece %d of step %d arrived, but piece %d of step %d is next",
			shard, s.Piece, s.Step, open.NextPiece, max(open.Step, j.LastClosed+1))
	}
	allowed := ranks(j)
	if open.NextPiece > 0 {
		allowed = open.Contributors
	}
	if !s.Contributors.Within(&allowed) {
		return false, open, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"shard %d: step %d has contributors that are not members, or that the previous piece does not have", shard, s.Step)
	}
	return false, open, nil
}

// advanceRows sets the last row of open to the last row of payload. The rows of payload must follow
// it in the order of (table, key).
// REQUIRES: Validate(wire.OpPush, payload) == nil.
func advanceRows(payload []byte, open *OpenStep) error {
	table := rowraft.TableID(0)
	for len(payload) > 0 {
		seg, body, rest, err := wire.ParseSegment(payload)
		if err != nil {
			return err
		}
		payload = rest
		if seg.Table <= table {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %#x follows table %#x in a step: want ascending tables",
				uint64(seg.Table), uint64(table))
		}
		table = seg.Table
		if seg.N == 0 {
			continue
		}
		if first := body.Key(0); seg.Table < open.Table || seg.Table == open.Table && first <= open.Key {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "key %d of table %#x is not above the last row of the step",
				first, uint64(seg.Table))
		}
		open.Table, open.Key = seg.Table, body.Key(seg.N-1)
	}
	return nil
}

// StepPart names a worker's part of a step.
type StepPart struct {
	Job         rowraft.JobID
	Generation  rowraft.Generation
	Rank        rowraft.Rank
	Incarnation rowraft.Incarnation
	Step        rowraft.Step
}

// CheckStep reports whether a worker's part is applied: its step is closed and contains it. It
// returns false and no error if the step is open. The caller must ensure that the state is the newest.
//
// A part of a later generation than the present one must wait. The exception is a part that the log
// already has in the open step: the present generation closes that step before it ends.
//
// Errors: *StepClosedError; *StaleGenerationError; CodeNotMember; CodeNotFound;
// CodeStarting if this replica has not yet applied the generation.
func (t *Jobs) CheckStep(p *StepPart) (applied bool, err error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	j, err := t.table.list.get(p.Job)
	if err != nil {
		return false, err
	}
	if _, err := member(j, p.Rank, p.Incarnation); err != nil {
		return false, err
	}
	if p.Step <= j.LastClosed {
		return closedWith(j, t.shard, p)
	}
	switch {
	case p.Generation < j.Generation:
		return false, &rowraft.StaleGenerationError{
			Shard: t.shard, Have: p.Generation, Want: j.Generation, Next: j.LastClosed + 1,
		}
	case p.Generation > j.Generation && (j.Open == nil || p.Step != j.Open.Step || !j.Open.Contributors.Has(p.Rank)):
		return false, rowraft.Errorf(rowraft.CodeStarting,
			"shard %d: generation %d of job %x has not arrived; the shard has generation %d",
			t.shard, p.Generation, p.Job[:4], j.Generation)
	}
	return false, nil
}

// closedWith reports whether the step of p, which is closed, contains p.
func closedWith(j *Job, shard rowraft.ShardID, p *StepPart) (applied bool, err error) {
	late := &rowraft.StepClosedError{Shard: shard, Step: p.Step, Next: j.LastClosed + 1}
	late.Unsure = len(j.Closed) == checkpoint.ClosedSteps && p.Step < j.Closed[0].Step
	for i := range j.Closed {
		if c := &j.Closed[i]; c.Step == p.Step && c.Contributors.Has(p.Rank) {
			return true, nil
		}
	}
	return false, late
}

// HasMembership reports whether w is the present membership of its job.
func (t *Jobs) HasMembership(w *wire.Membership) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	_, j := t.table.list.find(w.Job)
	return j != nil && sameMembership(j, w)
}

// JobPlan is what a leader needs to close steps.
type JobPlan struct {
	Generation rowraft.Generation
	LastClosed rowraft.Step
	Members    wire.RankSet
	Needed     int    // number of members that close a step
	Deadline   uint64 // nanoseconds; 0: none
	Open       OpenStep
}

// Plan returns the plan of a job. Errors: CodeNotFound.
func (t *Jobs) Plan(id rowraft.JobID) (p JobPlan, err error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	j, err := t.table.list.get(id)
	if err != nil {
		return p, err
	}
	p = JobPlan{
		Generation: j.Generation, LastClosed: j.LastClosed, Members: ranks(j), Needed: j.Quorum, Deadline: j.Deadline,
	}
	if p.Needed == 0 {
		p.Needed = len(j.Members)
	}
	if j.Open != nil {
		p.Open = *j.Open
	}
	return p, nil
}
