package shard

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/wire"
)

// Jobs are the training jobs of a shard (docs/formats/steps.md). Its exported methods are safe for concurrent use.
type Jobs struct {
	shard rowraft.ShardID
	mu    *sync.RWMutex // of the Machine
	table jobTable      // guarded by mu
}

// jobTable is the part of Jobs that a snapshot holds.
//
// Invariant: only the apply goroutine changes it, and a job that is not in private is changed only in a copy, unless
// private is nil.
type jobTable struct {
	list    jobs
	private map[*Job]bool // the jobs that no snapshot shares; nil means all of them
}

// Job is what a shard knows of a training job.
type Job struct {
	ID         rowraft.JobID
	Generation rowraft.Generation
	First      rowraft.Step
	Deadline   uint64 // nanoseconds; 0: none
	Quorum     int    // 0: all
	Members    []JobMember

	LastClosed rowraft.Step
	Closed     []ClosedStep // the last ones, ascending
	Open       *OpenStep    // the step of which some pieces are applied, or nil
	Positions  []rowraft.Position
}

// JobMember is a worker of a job.
type JobMember struct {
	wire.Member
	Clock uint64
}

// ClosedStep is a step that is applied.
type ClosedStep struct {
	Step         rowraft.Step
	Contributors wire.RankSet
}

// OpenStep is a step of which some pieces are applied.
type OpenStep struct {
	Step         rowraft.Step
	NextPiece    uint32
	Contributors wire.RankSet
	// Table and Key identify the last row that was applied. Table is 0 if none was.
	Table rowraft.TableID
	Key   rowraft.Key
}

// jobs are the training jobs of the shard (docs/formats/steps.md), ascending
// by id.
type jobs []*Job

// find returns the position of a job, or where to insert it, and the job or nil.
func (t jobs) find(id rowraft.JobID) (at int, j *Job) {
	at, ok := slices.BinarySearchFunc(t, id,
		func(j *Job, id rowraft.JobID) int { return bytes.Compare(j.ID[:], id[:]) })
	if !ok {
		return at, nil
	}
	return at, t[at]
}

// get returns a job, read-only, or CodeNotFound.
func (t jobs) get(id rowraft.JobID) (*Job, error) {
	if _, j := t.find(id); j != nil {
		return j, nil
	}
	return nil, rowraft.Errorf(rowraft.CodeNotFound,
		"job %x is unknown: it never existed, has ended, or a restore removed it", id[:4])
}

// share returns all jobs for a snapshot. From now on a change of a job copies it first.
func (t *jobTable) share() []*Job {
	t.private = make(map[*Job]bool)
	return slices.Clone(t.list)
}

// own returns the job at position at for a change. If a snapshot shares the job, own first
// replaces it by a copy.
func (t *jobTable) own(at int) *Job {
	j := t.list[at]
	if t.private == nil || t.private[j] {
		return j
	}
	c := cloneJob(j)
	t.list[at] = c
	t.private[c] = true
	return c
}

func cloneJob(j *Job) *Job {
	c := *j
	c.Members, c.Closed, c.Positions = slices.Clone(j.Members), slices.Clone(j.Closed), slices.Clone(j.Positions)
	if j.Open != nil {
		open := *j.Open
		c.Open = &open
	}
	return &c
}

func sameMembership(j *Job, w *wire.Membership) bool {
	return j.Generation == w.Generation && j.First == w.First && j.Deadline == w.Deadline && j.Quorum == w.Quorum &&
		slices.EqualFunc(j.Members, w.Members, func(a JobMember, b wire.Member) bool { return a.Member == b })
}

// ranks returns the ranks of the members of j.
func ranks(j *Job) (s wire.RankSet) {
	for _, w := range j.Members {
		s.Add(w.Rank)
	}
	return s
}

// member returns the member with this rank and incarnation, or CodeNotMember.
func member(j *Job, rank rowraft.Rank, inc rowraft.Incarnation) (*JobMember, error) {
	for i := range j.Members {
		w := &j.Members[i]
		if w.Rank == rank && w.Incarnation == inc {
			return w, nil
		}
		if w.Rank == rank {
			return nil, rowraft.Errorf(rowraft.CodeNotMember, "job %x: rank %d has incarnation %d, not %d",
				j.ID[:4], rank, w.Incarnation, inc)
		}
	}
	return nil, rowraft.Errorf(rowraft.CodeNotMember, "job %x: generation %d has no rank %d", j.ID[:4], j.Generation, rank)
}

// slowest returns the lowest clock of the members of j.
func slowest(j *Job) uint64 {
	low := uint64(math.MaxUint64)
	for i := range j.Members {
		low = min(low, j.Members[i].Clock)
	}
	return low
}

// applyMembership applies a membership entry.
func (m *Machine) applyMembership(h wire.EntryHeader, body []byte, a *Applied) error {
	w, err := wire.ParseMembership(body)
	if err != nil {
		return err
	}
	return m.change(h, a, func(uint64) (error, error) { return m.Jobs.table.set(m.shard, &w), nil })
}

// CheckMembership returns the error with which Apply would refuse w, or nil. Safe for concurrent use.
func (t *Jobs) CheckMembership(w *wire.Membership) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	_, j := t.table.list.find(w.Job)
	return t.table.check(t.shard, j, w)
}

// check refuses w if it cannot be the next membership of j. j is nil for a new job.
func (t *jobTable) check(shard rowraft.ShardID, j *Job, w *wire.Membership) error {
	switch {
	case len(w.Members) == 0:
	case j == nil && len(t.list) >= checkpoint.MaxJobs:
		return &rowraft.OverloadedError{
			What: fmt.Sprintf("shard %d has %d jobs with steps or clocks, the limit: end one first",
				shard, checkpoint.MaxJobs),
			RetryAfter: time.Minute,
		}
	case j == nil:
	case j.Generation > w.Generation:
		return &rowraft.StaleGenerationError{Shard: shard, Have: w.Generation, Want: j.Generation, Next: j.LastClosed + 1}
	case j.Generation == w.Generation && !sameMembership(j, w):
		return rowraft.Errorf(rowraft.CodeAlreadyExists,
			"shard %d: generation %d of job %x exists with other members or another quorum or deadline",
			shard, w.Generation, w.Job[:4])
	}
	return nil
}

func (t *jobTable) set(shard rowraft.ShardID, w *wire.Membership) error {
	at, j := t.list.find(w.Job)
	if err := t.check(shard, j, w); err != nil {
		return err
	}
	switch {
	case len(w.Members) == 0:
		if j != nil {
			t.list = slices.Delete(t.list, at, at+1)
		}
		return nil
	case j == nil:
		j = &Job{ID: w.Job}
		if t.private != nil {
			t.private[j] = true
		}
		t.list = slices.Insert(t.list, at, j)
	case j.Generation == w.Generation:
		return nil
	}
	j = t.own(at)
	j.Members = newMembers(j, w.Members)
	j.Generation, j.First, j.Deadline, j.Quorum = w.Generation, w.First, w.Deadline, w.Quorum
	j.LastClosed = max(j.LastClosed, w.First-1)
	if j.Open != nil {
		// Some rows of the open step have changed. A repeated step would change them twice.
		j.LastClosed, j.Open = max(j.LastClosed, j.Open.Step), nil
	}
	return nil
}

// newMembers returns the next members of j with their clocks. A member that stays
// keeps its clock; a new member starts with the lowest clock of those that stay.
func newMembers(j *Job, next []wire.Member) []JobMember {
	out := make([]JobMember, len(next))
	low, kept := uint64(math.MaxUint64), make([]bool, len(next))
	for i, w := range next {
		out[i].Member = w
		if old, err := member(j, w.Rank, w.Incarnation); err == nil {
			out[i].Clock, kept[i] = old.Clock, true
			low = min(low, old.Clock)
		}
	}
	if !slices.Contains(kept, true) {
		low = 0
		if len(j.Members) > 0 {
			low = slowest(j)
		}
	}
	for i := range out {
		if !kept[i] {
			out[i].Clock = low
		}
	}
	return out
}

// setPositions records how far trainers have read the data. REQUIRES: read is ascending by part.
func setPositions(j *Job, read []rowraft.Position) {
	for _, p := range read {
		at, ok := slices.BinarySearchFunc(j.Positions, p.ID, func(p rowraft.Position, part rowraft.PositionID) int {
			switch {
			case p.ID < part:
				return -1
			case p.ID > part:
				return 1
			}
			return 0
		})
		if ok {
			j.Positions[at].Offset = max(j.Positions[at].Offset, p.Offset)
			continue
		}
		j.Positions = slices.Insert(j.Positions, at, p)
	}
	if n := len(j.Positions) - checkpoint.JobPositions; n > 0 {
		j.Positions = slices.Delete(j.Positions, 0, n)
	}
}

// checkClock returns the error with which Apply would refuse a clocked push, or nil. Safe for concurrent use.
func (t *Jobs) checkClock(c *wire.Clock) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	j, err := t.table.list.get(c.Job)
	if err == nil {
		_, err = member(j, c.Rank, c.Incarnation)
	}
	return err
}

// setClock applies the clock of a push that checkClock has accepted.
// Only the apply goroutine calls it.
func (t *Jobs) setClock(payload []byte) {
	c, _, err := wire.ParseClock(payload)
	if err != nil {
		return // unreachable: Validate has parsed it
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	at, found := t.table.list.find(c.Job)
	if found == nil {
		return // unreachable: checkClock has found it
	}
	j := t.table.own(at)
	if w, err := member(j, c.Rank, c.Incarnation); err == nil {
		w.Clock = max(w.Clock, c.Clock)
		setPositions(j, c.Positions)
	}
}

// IDs returns the ids of the jobs, ascending.
func (t *Jobs) IDs() (ids []rowraft.JobID) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, j := range t.table.list {
		ids = append(ids, j.ID)
	}
	return ids
}

// Get returns a copy of a job. Errors: CodeNotFound.
func (t *Jobs) Get(id rowraft.JobID) (*Job, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	j, err := t.table.list.get(id)
	if err != nil {
		return nil, err
	}
	return cloneJob(j), nil
}

// SlowestClock returns the lowest clock of a job's members. Errors: CodeNotFound.
func (t *Jobs) SlowestClock(id rowraft.JobID) (uint64, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	j, err := t.table.list.get(id)
	if err != nil {
		return 0, err
	}
	return slowest(j), nil
}
