package checkpoint

import (
	"bytes"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// Limits of what a shard keeps of jobs (docs/formats/steps.md). A change
// of one needs a new format version.
const (
	MaxJobs       = 256
	ClosedSteps   = 16 // whose contributors are remembered
	JobPositions  = wire.MaxJobPositions
	jobFixed      = 72
	jobMemberSize = 24
	rankSetSize   = rowraft.MaxRanks / 8
	closedSize    = 8 + rankSetSize
	openSize      = 24 + rankSetSize
	positionSize  = 16

	chunkJobs chunkKind = 6 // after the sessions, if there are any
)

// Job is the record of a training job.
type Job struct {
	ID         rowraft.JobID
	Generation rowraft.Generation
	First      rowraft.Step
	Deadline   uint64 // nanoseconds; 0: none
	Quorum     int    // 0: all
	Members    []JobMember

	LastClosed rowraft.Step
	Closed     []ClosedStep // the last ones, ascending
	Open       *OpenStep    // nil if there is none
	Positions  []rowraft.Position
}

// JobMember is the record of a worker of a job.
type JobMember struct {
	wire.Member
	Clock uint64
}

// ClosedStep is the record of a step that is applied.
type ClosedStep struct {
	Step         rowraft.Step
	Contributors wire.RankSet
}

// OpenStep is the record of a step of which some pieces are applied.
type OpenStep struct {
	Step         rowraft.Step
	NextPiece    uint32
	Contributors wire.RankSet
	// Table and Key identify the last row that was applied. Table is 0 if none was.
	Table rowraft.TableID
	Key   rowraft.Key
}

func (j *Job) size() int {
	n := jobFixed + jobMemberSize*len(j.Members) + closedSize*len(j.Closed) + positionSize*len(j.Positions)
	if j.Open != nil {
		n += openSize
	}
	return n
}

func appendRankSet(dst []byte, s *wire.RankSet) []byte {
	for _, w := range s {
		dst = le.AppendUint64(dst, w)
	}
	return dst
}

func appendJob(dst []byte, j *Job) []byte {
	dst = append(dst, j.ID[:]...)
	dst = le.AppendUint64(dst, uint64(j.Generation))
	dst = le.AppendUint64(dst, uint64(j.First))
	dst = le.AppendUint64(dst, j.Deadline)
	dst = le.AppendUint64(dst, uint64(j.LastClosed))
	dst = le.AppendUint32(dst, uint32(j.Quorum))
	dst = le.AppendUint32(dst, uint32(len(j.Members)))
	dst = le.AppendUint32(dst, uint32(len(j.Closed)))
	dst = le.AppendUint32(dst, uint32(len(j.Positions)))
	piece := uint32(0)
	if j.Open != nil {
		piece = j.Open.NextPiece
	}
	dst = le.AppendUint32(dst, piece)
	dst = le.AppendUint32(dst, 0)
	for _, m := range j.Members {
		dst = le.AppendUint32(dst, uint32(m.Rank))
		dst = le.AppendUint32(dst, 0)
		dst = le.AppendUint64(dst, uint64(m.Incarnation))
		dst = le.AppendUint64(dst, m.Clock)
	}
	for i := range j.Closed {
		dst = appendRankSet(le.AppendUint64(dst, uint64(j.Closed[i].Step)), &j.Closed[i].Contributors)
	}
	if o := j.Open; o != nil {
		dst = le.AppendUint64(dst, uint64(o.Step))
		dst = le.AppendUint64(dst, uint64(o.Table))
		dst = le.AppendUint64(dst, uint64(o.Key))
		dst = appendRankSet(dst, &o.Contributors)
	}
	for _, p := range j.Positions {
		dst = le.AppendUint64(dst, uint64(p.ID))
		dst = le.AppendUint64(dst, p.Offset)
	}
	return dst
}

// parseJob reads the first job of b.
func parseJob(b []byte) (j Job, rest []byte, err error) {
	bad := func(what string) (Job, []byte, error) {
		return j, nil, rowraft.Errorf(rowraft.CodeCorrupt, "snapshot: a job %s", what)
	}
	if len(b) < jobFixed {
		return bad("ends early")
	}
	j = Job{
		ID: rowraft.JobID(b[:16]), Generation: rowraft.Generation(le.Uint64(b[16:])), First: rowraft.Step(le.Uint64(b[24:])),
		Deadline: le.Uint64(b[32:]), LastClosed: rowraft.Step(le.Uint64(b[40:])), Quorum: int(le.Uint32(b[48:])),
	}
	members, closed, positions := int(le.Uint32(b[52:])), int(le.Uint32(b[56:])), int(le.Uint32(b[60:]))
	piece, zero := le.Uint32(b[64:]), le.Uint32(b[68:])
	b = b[jobFixed:]
	if zero != 0 || members < 1 || members > rowraft.MaxRanks || closed > ClosedSteps || positions > JobPositions ||
		j.First == 0 || j.LastClosed < j.First-1 {
		return bad("has impossible fields")
	}
	open := 0
	if piece > 0 {
		open = openSize
	}
	if len(b) < jobMemberSize*members+closedSize*closed+open+positionSize*positions {
		return bad("ends early")
	}
	if b = j.parseMembers(b, members); b == nil {
		return bad("has members that cannot be")
	}
	if b = j.parseSteps(b, closed, piece); b == nil {
		return bad("has steps that cannot be")
	}
	for i := range positions {
		p := rowraft.Position{ID: rowraft.PositionID(le.Uint64(b)), Offset: le.Uint64(b[8:])}
		if i > 0 && p.ID <= j.Positions[i-1].ID {
			return bad("has splits that are not in ascending order")
		}
		j.Positions = append(j.Positions, p)
		b = b[positionSize:]
	}
	return j, b, nil
}

// parseMembers returns what follows n members, nil if they cannot be.
func (j *Job) parseMembers(b []byte, n int) []byte {
	m := wire.Membership{Job: j.ID, Generation: j.Generation, First: j.First, Deadline: j.Deadline, Quorum: j.Quorum}
	for range n {
		w := JobMember{wire.Member{Rank: rowraft.Rank(le.Uint32(b)), Incarnation: rowraft.Incarnation(le.Uint64(b[8:]))},
			le.Uint64(b[16:])}
		if le.Uint32(b[4:]) != 0 {
			return nil
		}
		j.Members, m.Members = append(j.Members, w), append(m.Members, w.Member)
		b = b[jobMemberSize:]
	}
	if m.Validate() != nil {
		return nil
	}
	return b
}

// parseSteps returns what follows the closed steps and, if piece is not 0, the open
// one; nil if they cannot be.
func (j *Job) parseSteps(b []byte, closed int, piece uint32) []byte {
	last := rowraft.Step(0)
	for range closed {
		c := ClosedStep{Step: rowraft.Step(le.Uint64(b)), Contributors: parseRankSet(b[8:])}
		if c.Step <= last || c.Step > j.LastClosed || c.Contributors == (wire.RankSet{}) {
			return nil
		}
		last, j.Closed = c.Step, append(j.Closed, c)
		b = b[closedSize:]
	}
	if piece == 0 {
		return b
	}
	j.Open = &OpenStep{
		Step: rowraft.Step(le.Uint64(b)), NextPiece: piece, Table: rowraft.TableID(le.Uint64(b[8:])),
		Key: rowraft.Key(le.Uint64(b[16:])), Contributors: parseRankSet(b[24:]),
	}
	o, members := j.Open, wire.RankSet{}
	for _, m := range j.Members {
		members.Add(m.Rank)
	}
	if o.Step <= j.LastClosed || o.Contributors == (wire.RankSet{}) || !o.Contributors.Within(&members) || o.Table == 0 &&
		o.Key != 0 {
		return nil
	}
	return b[openSize:]
}

func parseRankSet(b []byte) (s wire.RankSet) {
	for i := range s {
		s[i] = le.Uint64(b[8*i:])
	}
	return s
}

// appendJobs writes the chunks of jobs, none if there are none.
func (w *Writer) appendJobs(jobs []Job) error {
	if len(jobs) == 0 {
		return nil
	}
	w.begin(chunkJobs)
	for i := range jobs {
		if i > 0 && bytes.Compare(jobs[i].ID[:], jobs[i-1].ID[:]) <= 0 {
			return rowraft.Errorf(rowraft.CodeInternal, "snapshot: jobs are not in ascending order")
		}
		if err := w.split(chunkJobs, jobs[i].size()); err != nil {
			return err
		}
		w.buf = appendJob(w.buf, &jobs[i])
	}
	return w.end()
}

func (r *Reader) readJobs(n int) error {
	for len(r.jobs) < n {
		rest, err := r.section(chunkJobs, false)
		if err != nil {
			return err
		}
		for len(rest) > 0 {
			var j Job
			if j, rest, err = parseJob(rest); err != nil {
				return err
			}
			if k := len(r.jobs); k > 0 && bytes.Compare(j.ID[:], r.jobs[k-1].ID[:]) <= 0 {
				return r.corrupt("jobs are not in ascending order")
			}
			r.jobs = append(r.jobs, j)
		}
	}
	if len(r.jobs) != n {
		return r.corrupt("the header names %d jobs, there are %d", n, len(r.jobs))
	}
	return nil
}

// Jobs are those of the stream, ascending by id.
func (r *Reader) Jobs() []Job { return r.jobs }
