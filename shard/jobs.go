package shard

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/wire"
)

// jobs are the training jobs that the shard knows (docs/formats/steps.md), ascending
// by id.
type jobs []*checkpoint.Job

// find returns the place of a job, or where it belongs, and the job or nil.
func (t jobs) find(id rowraft.JobID) (at int, j *checkpoint.Job) {
	at, ok := slices.BinarySearchFunc(t, id, func(j *checkpoint.Job, id rowraft.JobID) int { return bytes.Compare(j.ID[:], id[:]) })
	if !ok {
		return at, nil
	}
	return at, t[at]
}

// get returns a job to be looked at only, or CodeNotFound.
func (t jobs) get(id rowraft.JobID) (*checkpoint.Job, error) {
	if _, j := t.find(id); j != nil {
		return j, nil
	}
	return nil, rowraft.Errorf(rowraft.CodeNotFound, "job %x is not known here: it was never made, has ended, or was forgotten by a restore", id[:4])
}

// shareJobs returns all jobs for a snapshot; from now on they are changed as copies.
func (st *state) shareJobs() []*checkpoint.Job {
	st.privateJobs = make(map[*checkpoint.Job]bool)
	return slices.Clone(st.jobs)
}

// ownJob returns the job at a place, or a copy that has taken its place if a snapshot
// shares it: what may be changed.
func (st *state) ownJob(at int) *checkpoint.Job {
	j := st.jobs[at]
	if st.privateJobs == nil || st.privateJobs[j] {
		return j
	}
	c := cloneJob(j)
	st.jobs[at] = c
	st.privateJobs[c] = true
	return c
}

func cloneJob(j *checkpoint.Job) *checkpoint.Job {
	c := *j
	c.Members, c.Closed, c.Positions = slices.Clone(j.Members), slices.Clone(j.Closed), slices.Clone(j.Positions)
	if j.Open != nil {
		open := *j.Open
		c.Open = &open
	}
	return &c
}

func sameMembership(j *checkpoint.Job, w *wire.Membership) bool {
	return j.Generation == w.Generation && j.First == w.First && j.Deadline == w.Deadline && j.Quorum == w.Quorum &&
		slices.EqualFunc(j.Members, w.Members, func(a checkpoint.JobMember, b wire.Member) bool { return a.Member == b })
}

func ranks(j *checkpoint.Job) (s wire.RankSet) {
	for _, w := range j.Members {
		s.Add(w.Rank)
	}
	return s
}

// member returns the member with this rank and incarnation, or CodeNotMember.
func member(j *checkpoint.Job, rank rowraft.Rank, inc rowraft.Incarnation) (*checkpoint.JobMember, error) {
	for i := range j.Members {
		w := &j.Members[i]
		if w.Rank == rank && w.Incarnation == inc {
			return w, nil
		}
		if w.Rank == rank {
			return nil, rowraft.Errorf(rowraft.CodeNotMember, "job %x: rank %d has incarnation %d, not %d", j.ID[:4], rank, w.Incarnation, inc)
		}
	}
	return nil, rowraft.Errorf(rowraft.CodeNotMember, "job %x: no rank %d in generation %d", j.ID[:4], rank, j.Generation)
}

func slowest(j *checkpoint.Job) uint64 {
	low := uint64(math.MaxUint64)
	for i := range j.Members {
		low = min(low, j.Members[i].Clock)
	}
	return low
}

// applyMembership applies a membership entry.
func (m *Machine) applyMembership(h wire.EntryHeader, body []byte, a *Applied) error {
	w, err := wire.ParseMembership(h, body)
	if err != nil {
		return err
	}
	return m.change(h, a, func(st *state, _ uint64) (error, error) { return st.setMembership(m.shard, &w), nil })
}

// CheckMembership reports why w would be refused. Safe for concurrent use.
func (m *Machine) CheckMembership(w *wire.Membership) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	_, j := m.mu.jobs.find(w.Job)
	return m.mu.checkMembership(m.shard, j, w)
}

// checkMembership refuses what cannot be the next membership of j, nil for a new job.
func (st *state) checkMembership(shard rowraft.ShardID, j *checkpoint.Job, w *wire.Membership) error {
	switch {
	case len(w.Members) == 0:
	case j == nil && len(st.jobs) >= checkpoint.MaxJobs:
		return &rowraft.OverloadedError{What: fmt.Sprintf("shard %d keeps %d jobs that train in step or with clocks, as many as it can", shard, checkpoint.MaxJobs), RetryAfter: time.Minute}
	case j == nil:
	case j.Generation > w.Generation:
		return &rowraft.StaleGenerationError{Shard: shard, Have: w.Generation, Want: j.Generation, Next: j.LastClosed + 1}
	case j.Generation == w.Generation && !sameMembership(j, w):
		return rowraft.Errorf(rowraft.CodeAlreadyExists, "shard %d: generation %d of job %x has other members, or another rule", shard, w.Generation, w.Job[:4])
	}
	return nil
}

func (st *state) setMembership(shard rowraft.ShardID, w *wire.Membership) error {
	at, j := st.jobs.find(w.Job)
	if err := st.checkMembership(shard, j, w); err != nil {
		return err
	}
	switch {
	case len(w.Members) == 0:
		if j != nil {
			st.jobs = slices.Delete(st.jobs, at, at+1)
		}
		return nil
	case j == nil:
		j = &checkpoint.Job{ID: w.Job}
		if st.privateJobs != nil {
			st.privateJobs[j] = true
		}
		st.jobs = slices.Insert(st.jobs, at, j)
	case j.Generation == w.Generation:
		return nil
	}
	j = st.ownJob(at)
	j.Members = newMembers(j, w.Members)
	j.Generation, j.First, j.Deadline, j.Quorum = w.Generation, w.First, w.Deadline, w.Quorum
	j.LastClosed = max(j.LastClosed, w.First-1)
	if j.Open != nil {
		// Some of its rows have changed: pushed anew they would change twice.
		j.LastClosed, j.Open = max(j.LastClosed, j.Open.Step), nil
	}
	return nil
}

// newMembers are those of the next membership of j, with their clocks: who stays
// keeps its own, the others begin with the lowest.
func newMembers(j *checkpoint.Job, next []wire.Member) []checkpoint.JobMember {
	out := make([]checkpoint.JobMember, len(next))
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

// setPositions notes how far data was read. REQUIRES: parts ascend.
func setPositions(j *checkpoint.Job, read []rowraft.Position) {
	for _, p := range read {
		at, ok := slices.BinarySearchFunc(j.Positions, p.Part, func(p rowraft.Position, part rowraft.DataPart) int {
			switch {
			case p.Part < part:
				return -1
			case p.Part > part:
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

// checkClock reports why a clocked push cannot be. Safe for concurrent use.
func (m *Machine) checkClock(c *wire.Clock) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	j, err := m.mu.jobs.get(c.Job)
	if err == nil {
		_, err = member(j, c.Rank, c.Incarnation)
	}
	return err
}

// setClock applies the clock of a push that checkClock has found right.
// REQUIRES: m.entry is held.
func (m *Machine) setClock(payload []byte) {
	c, _, err := wire.ParseClock(payload)
	if err != nil {
		return // checked before
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at, found := m.mu.jobs.find(c.Job)
	if found == nil {
		return // likewise
	}
	j := m.mu.ownJob(at)
	if w, err := member(j, c.Rank, c.Incarnation); err == nil {
		w.Clock = max(w.Clock, c.Clock)
		setPositions(j, c.Positions)
	}
}

// Jobs lists the ids of the jobs, ascending.
func (m *Machine) Jobs() (ids []rowraft.JobID) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, j := range m.mu.jobs {
		ids = append(ids, j.ID)
	}
	return ids
}

// Job returns a copy of all that is known of a job. Errors: CodeNotFound.
func (m *Machine) Job(id rowraft.JobID) (*checkpoint.Job, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	j, err := m.mu.jobs.get(id)
	if err != nil {
		return nil, err
	}
	return cloneJob(j), nil
}

// SlowestClock is the lowest clock of a job's members. Errors: CodeNotFound.
func (m *Machine) SlowestClock(id rowraft.JobID) (uint64, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	j, err := m.mu.jobs.get(id)
	if err != nil {
		return 0, err
	}
	return slowest(j), nil
}
