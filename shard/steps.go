package shard

import (
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/wire"
)

// applyStep applies one piece of a step: each row once, whoever sends the piece.
// The error is fatal.
func (m *Machine) applyStep(h wire.EntryHeader, body []byte, a *Applied) error {
	s, err := wire.ParseStep(h, body)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.tick(h)
	duplicate, answer := false, m.checkEpoch(h)
	var open checkpoint.OpenStep
	if answer == nil {
		duplicate, open, answer = m.mu.jobs.checkStep(m.shard, &s)
	}
	m.mu.Unlock()
	if answer == nil && !duplicate {
		answer = m.Validate(wire.OpPush, s.Payload)
	}
	if answer == nil && !duplicate {
		answer = walkRows(s.Payload, &open)
	}
	a.Parts = []PartResult{{Err: answer, Duplicate: duplicate}}
	if answer != nil || duplicate {
		return nil
	}
	if err := m.applyRows(&wire.Part{Op: wire.OpPush, Payload: s.Payload}); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at, _ := m.mu.jobs.find(s.Job)
	j := m.mu.ownJob(at) // only this goroutine changes jobs
	setPositions(j, s.Positions)
	if !s.Last {
		open.Step, open.NextPiece, open.Contributors = s.Step, s.Piece+1, s.Contributors
		j.Open = &open
		return nil
	}
	j.Open, j.LastClosed = nil, s.Step
	if n := len(j.Closed) - checkpoint.ClosedSteps + 1; n > 0 {
		j.Closed = append(j.Closed[:0], j.Closed[n:]...)
	}
	j.Closed = append(j.Closed, checkpoint.ClosedStep{Step: s.Step, Contributors: s.Contributors})
	return nil
}

// checkStep reports why a piece does not come next in its job; duplicate: because
// it is applied. open is what the job has of the step already.
func (t jobs) checkStep(shard rowraft.ShardID, s *wire.Step) (duplicate bool, open checkpoint.OpenStep, err error) {
	j, err := t.get(s.Job)
	if err != nil {
		return false, open, err
	}
	if j.Generation != s.Generation {
		return false, open, &rowraft.StaleGenerationError{Shard: shard, Have: s.Generation, Want: j.Generation, Next: j.LastClosed + 1}
	}
	if j.Open != nil {
		open = *j.Open
	}
	switch {
	case s.Step <= j.LastClosed, s.Step < open.Step, s.Step == open.Step && s.Piece < open.NextPiece:
		return true, open, nil
	case s.Piece != open.NextPiece, open.NextPiece > 0 && s.Step != open.Step, s.AfterTable != open.Table, s.AfterKey != open.Key:
		return false, open, rowraft.Errorf(rowraft.CodePrecondition, "shard %d: piece %d of step %d; piece %d of step %d comes next", shard, s.Piece, s.Step, open.NextPiece, max(open.Step, j.LastClosed+1))
	}
	may := ranks(j)
	if open.NextPiece > 0 {
		may = open.Contributors
	}
	if !s.Contributors.Within(&may) {
		return false, open, rowraft.Errorf(rowraft.CodeInvalidArgument, "shard %d: step %d has contributors that are no members, or were none of the piece before", shard, s.Step)
	}
	return false, open, nil
}

// walkRows moves the last row of open to that of payload, which must go on after it
// in the order of (table, key).
// REQUIRES: Validate(wire.OpPush, payload) == nil.
func walkRows(payload []byte, open *checkpoint.OpenStep) error {
	table := rowraft.TableID(0)
	for len(payload) > 0 {
		seg, body, rest, err := wire.ParseSegment(payload)
		if err != nil {
			return err
		}
		payload = rest
		if seg.Table <= table {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %#x does not stand above table %#x in a step", uint64(seg.Table), uint64(table))
		}
		table = seg.Table
		if seg.N == 0 {
			continue
		}
		if first := body.Key(0); seg.Table < open.Table || seg.Table == open.Table && first <= open.Key {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "key %d of table %#x is not above the last row of the step", first, uint64(seg.Table))
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

// CheckStep tells what is known of a part: applied, if its step is closed and it is in
// there; nothing, if its step is open. It wants a state that is the newest.
//
// A part of a later generation than the present one must wait, unless it is of a step that is open
// in the log and has the worker's part: the present generation closes that before it ends.
//
// Errors: *StepClosedError; *StaleGenerationError; CodeNotMember; CodeNotFound;
// CodeStarting if the generation has not arrived here.
func (m *Machine) CheckStep(p *StepPart) (applied bool, err error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	j, err := m.mu.jobs.get(p.Job)
	if err != nil {
		return false, err
	}
	if _, err := member(j, p.Rank, p.Incarnation); err != nil {
		return false, err
	}
	if p.Step <= j.LastClosed {
		return closedWith(j, m.shard, p)
	}
	switch {
	case p.Generation < j.Generation:
		return false, &rowraft.StaleGenerationError{Shard: m.shard, Have: p.Generation, Want: j.Generation, Next: j.LastClosed + 1}
	case p.Generation > j.Generation && (j.Open == nil || p.Step != j.Open.Step || !j.Open.Contributors.Has(p.Rank)):
		return false, rowraft.Errorf(rowraft.CodeStarting, "shard %d: generation %d of job %x has not arrived, it is at %d", m.shard, p.Generation, p.Job[:4], j.Generation)
	}
	return false, nil
}

// closedWith tells whether p is in its step, which is closed.
func closedWith(j *checkpoint.Job, shard rowraft.ShardID, p *StepPart) (applied bool, err error) {
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
func (m *Machine) HasMembership(w *wire.Membership) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	_, j := m.mu.jobs.find(w.Job)
	return j != nil && sameMembership(j, w)
}

// JobPlan is what a leader needs to know to close steps.
type JobPlan struct {
	Generation rowraft.Generation
	LastClosed rowraft.Step
	Members    wire.RankSet
	Needed     int    // members that close a step
	Deadline   uint64 // nanoseconds; 0: none
	Open       checkpoint.OpenStep
}

// JobPlan returns that of a job. Errors: CodeNotFound.
func (m *Machine) JobPlan(id rowraft.JobID) (p JobPlan, err error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	j, err := m.mu.jobs.get(id)
	if err != nil {
		return p, err
	}
	p = JobPlan{Generation: j.Generation, LastClosed: j.LastClosed, Members: ranks(j), Needed: j.Quorum, Deadline: j.Deadline}
	if p.Needed == 0 {
		p.Needed = len(j.Members)
	}
	if j.Open != nil {
		p.Open = *j.Open
	}
	return p, nil
}
