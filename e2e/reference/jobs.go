package reference

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"

	"github.com/rowraft/rowraft"
)

// Training in step, from docs/formats/steps.md.
const (
	kindMembership = 12
	kindStep       = 13
	opClocked      = 4

	maxJobs      = 256
	maxRanks     = 1024
	maxClosed    = 16
	maxPositions = 4096
	maxRead      = 64 // positions of one push
)

// Job is the state of a training job in a shard.
type Job struct {
	Generation, First, Deadline, LastClosed uint64
	Quorum                                  uint32
	Members                                 map[uint32]Member // by rank
	Closed                                  []Closed
	Open                                    *Open
	Positions                               map[uint64]uint64 // offset by data part
}

// Member is a worker.
type Member struct{ Incarnation, Clock uint64 }

// Closed is a step that was applied, and its contributors.
type Closed struct {
	Step uint64
	With rankSet
}

// Open is a step of which some pieces were applied.
type Open struct {
	Step       uint64
	NextPiece  uint32
	With       rankSet
	Table, Key uint64 // of the last row
}

type rankSet [maxRanks / 64]uint64

func (s rankSet) has(r uint32) bool { return s[r/64]>>(r%64)&1 == 1 }

func (s rankSet) within(o rankSet) bool {
	for r := range uint32(maxRanks) {
		if s.has(r) && !o.has(r) {
			return false
		}
	}
	return true
}

type position struct{ part, offset uint64 }

// membership is the body of an entry of kind 12.
type membership struct {
	job                         rowraft.JobID
	generation, first, deadline uint64
	quorum                      uint32
	members                     map[uint32]Member
}

// step is the body of an entry of kind 13.
type step struct {
	job                  rowraft.JobID
	generation, step     uint64
	piece                uint32
	last                 bool
	afterTable, afterKey uint64
	with                 rankSet
	read                 []position
	payload              []byte
}

func decodeMembership(b []byte) (*membership, error) {
	if len(b) < 48 {
		return nil, corrupt("membership too short")
	}
	m := &membership{
		job: rowraft.JobID(b[:16]), generation: le.Uint64(b[16:]), first: le.Uint64(b[24:]), deadline: le.Uint64(b[32:]),
		quorum: le.Uint32(b[40:]), members: map[uint32]Member{},
	}
	n, last := le.Uint32(b[44:]), int64(-1)
	if n > maxRanks || m.quorum > n || len(b) != 48+16*int(n) {
		return nil, corrupt("membership with impossible numbers")
	}
	if n == 0 && !zero(b[16:48]) || n > 0 && (m.generation == 0 || m.first == 0) {
		return nil, corrupt("membership that is neither an end nor a beginning")
	}
	for b = b[48:]; len(b) > 0; b = b[16:] {
		rank, inc := le.Uint32(b), le.Uint64(b[8:])
		if !zero(b[4:8]) || rank >= maxRanks || int64(rank) <= last || inc == 0 {
			return nil, corrupt("impossible member")
		}
		last, m.members[rank] = int64(rank), Member{Incarnation: inc}
	}
	return m, nil
}

func decodeStep(b []byte) (*step, error) {
	if len(b) < 64 {
		return nil, corrupt("step too short")
	}
	s := &step{
		job: rowraft.JobID(b[:16]), generation: le.Uint64(b[16:]), step: le.Uint64(b[24:]), piece: le.Uint32(b[32:]),
		last: b[36] == 1, afterTable: le.Uint64(b[48:]), afterKey: le.Uint64(b[56:]),
	}
	words, n := int(b[37]), int(le.Uint32(b[40:]))
	if s.step == 0 || b[36] > 1 || words < 1 || words > 16 || !zero(b[38:40]) || n > maxPositions || !zero(b[44:48]) ||
		len(b) < 64+8*words+16*n {
		return nil, corrupt("step with impossible fields")
	}
	for i := range words {
		s.with[i] = le.Uint64(b[64+8*i:])
	}
	var ok bool
	if s.read, ok = decodePositions(b[64+8*words : 64+8*words+16*n]); !ok || s.with[words-1] == 0 {
		return nil, corrupt("step with impossible contributors or positions")
	}
	s.payload = b[64+8*words+16*n:]
	return s, nil
}

func decodePositions(b []byte) (all []position, ok bool) {
	for ; len(b) > 0; b = b[16:] {
		p := position{le.Uint64(b), le.Uint64(b[8:])}
		if len(all) > 0 && p.part <= all[len(all)-1].part {
			return nil, false
		}
		all = append(all, p)
	}
	return all, true
}

// applyMembership follows the tables of kind 12.
func (m *Machine) applyMembership(w *membership) rowraft.Code {
	j := m.Jobs[w.job]
	switch {
	case len(w.members) == 0:
		delete(m.Jobs, w.job)
		return rowraft.CodeUnknown
	case j == nil && len(m.Jobs) >= maxJobs:
		return rowraft.CodeOverloaded
	case j == nil:
		j = &Job{Positions: map[uint64]uint64{}}
		m.Jobs[w.job] = j
	case j.Generation > w.generation:
		return rowraft.CodeStaleGeneration
	case j.Generation == w.generation:
		same := j.First == w.first && j.Deadline == w.deadline && j.Quorum == w.quorum &&
			maps.EqualFunc(j.Members, w.members, func(a, b Member) bool { return a.Incarnation == b.Incarnation })
		if !same {
			return rowraft.CodeAlreadyExists
		}
		return rowraft.CodeUnknown
	}
	kept := map[uint32]Member{}
	for rank, w := range w.members {
		if old, ok := j.Members[rank]; ok && old.Incarnation == w.Incarnation {
			kept[rank] = old
		}
	}
	low := lowestClock(kept)
	if len(kept) == 0 {
		low = lowestClock(j.Members)
	}
	if len(kept) == 0 && len(j.Members) == 0 {
		low = 0
	}
	next := map[uint32]Member{}
	for rank, w := range w.members {
		next[rank] = Member{w.Incarnation, low}
		if old, ok := kept[rank]; ok {
			next[rank] = old
		}
	}
	j.Generation, j.First, j.Deadline, j.Quorum, j.Members = w.generation, w.first, w.deadline, w.quorum, next
	j.LastClosed = max(j.LastClosed, w.first-1)
	if j.Open != nil {
		j.LastClosed = max(j.LastClosed, j.Open.Step)
	}
	j.Open = nil
	return rowraft.CodeUnknown
}

func lowestClock(members map[uint32]Member) uint64 {
	low := uint64(math.MaxUint64)
	for _, w := range members {
		low = min(low, w.Clock)
	}
	return low
}

// applyStep follows the table of kind 13 line by line.
func (m *Machine) applyStep(s *step) Answer {
	j := m.Jobs[s.job]
	if j == nil {
		return Answer{Code: rowraft.CodeNotFound}
	}
	if j.Generation != s.generation {
		return Answer{Code: rowraft.CodeStaleGeneration}
	}
	open := Open{}
	if j.Open != nil {
		open = *j.Open
	}
	if s.step <= j.LastClosed || j.Open != nil && (s.step < open.Step || s.step == open.Step && s.piece < open.NextPiece) {
		return Answer{Duplicate: true}
	}
	if s.piece != open.NextPiece || j.Open != nil && s.step > open.Step || s.afterTable != open.Table ||
		s.afterKey != open.Key {
		return Answer{Code: rowraft.CodePrecondition}
	}
	may := open.With
	if j.Open == nil {
		for rank := range j.Members {
			may[rank/64] |= 1 << (rank % 64)
		}
	}
	if !s.with.within(may) {
		return Answer{Code: rowraft.CodeInvalidArgument}
	}
	segments, code := m.checkPayload(opPush, s.payload)
	if code != rowraft.CodeUnknown {
		return Answer{Code: code}
	}
	table, key := open.Table, open.Key
	for i, seg := range segments {
		id := uint64(seg.table.Schema.ID)
		if i > 0 && id <= uint64(segments[i-1].table.Schema.ID) {
			return Answer{Code: rowraft.CodeInvalidArgument}
		}
		if len(seg.keys) == 0 {
			continue
		}
		if first := uint64(seg.keys[0]); table > id || table == id && first <= key {
			return Answer{Code: rowraft.CodeInvalidArgument}
		}
		table, key = id, uint64(seg.keys[len(seg.keys)-1])
	}
	for _, seg := range segments {
		m.applySegment(opPush, seg)
	}
	j.note(s.read)
	if !s.last {
		j.Open = &Open{s.step, s.piece + 1, s.with, table, key}
		return Answer{}
	}
	j.Open, j.LastClosed = nil, s.step
	j.Closed = append(j.Closed, Closed{s.step, s.with})
	j.Closed = j.Closed[max(0, len(j.Closed)-maxClosed):]
	return Answer{}
}

// note records how far data was read.
func (j *Job) note(read []position) {
	for _, p := range read {
		if have, ok := j.Positions[p.part]; !ok || p.offset > have {
			j.Positions[p.part] = p.offset
		}
	}
	for len(j.Positions) > maxPositions {
		delete(j.Positions, slices.Min(slices.Collect(maps.Keys(j.Positions))))
	}
}

// clocked removes the clock record from the payload of a clocked push. A code other than CodeUnknown
// refuses the push; otherwise set applies the record.
func (m *Machine) clocked(b []byte) (segments []byte, set func(), code rowraft.Code) {
	if len(b) > maxPayload || len(b) < 40 {
		return nil, nil, rowraft.CodeInvalidArgument
	}
	id, inc, clock, rank, n := rowraft.JobID(b[:16]), le.Uint64(b[16:]), le.Uint64(b[24:]), le.Uint32(b[32:]),
		le.Uint32(b[36:])
	if n > maxRead || len(b) < 40+16*int(n) {
		return nil, nil, rowraft.CodeInvalidArgument
	}
	read, ok := decodePositions(b[40 : 40+16*n])
	if !ok {
		return nil, nil, rowraft.CodeInvalidArgument
	}
	j := m.Jobs[id]
	if j == nil {
		return nil, nil, rowraft.CodeNotFound
	}
	w, ok := j.Members[rank]
	if !ok || w.Incarnation != inc {
		return nil, nil, rowraft.CodeNotMember
	}
	return b[40+16*n:], func() {
		w.Clock = max(w.Clock, clock)
		j.Members[rank] = w
		j.note(read)
	}, rowraft.CodeUnknown
}

// jobs reads the jobs of a snapshot.
func (l *loader) jobs(want int) error {
	var last rowraft.JobID
	for len(l.m.Jobs) < want {
		kind, b, err := l.chunk()
		if err != nil {
			return err
		}
		if kind != 6 || len(b) == 0 {
			return corrupt("snapshot: a chunk of jobs is missing")
		}
		for len(b) > 0 {
			if len(b) < 72 {
				return corrupt("snapshot: a job ends early")
			}
			id := rowraft.JobID(b[:16])
			if len(l.m.Jobs) > 0 && bytes.Compare(id[:], last[:]) <= 0 {
				return corrupt("snapshot: jobs are not in order")
			}
			j := &Job{}
			if b = j.decode(b); b == nil {
				return corrupt("snapshot: an impossible job")
			}
			last, l.m.Jobs[id] = id, j
		}
	}
	if len(l.m.Jobs) != want {
		return corrupt("snapshot: another number of jobs")
	}
	return nil
}

// decode reads a job and returns the rest, nil if the job is impossible.
func (j *Job) decode(b []byte) []byte {
	*j = Job{
		Generation: le.Uint64(b[16:]), First: le.Uint64(b[24:]), Deadline: le.Uint64(b[32:]), LastClosed: le.Uint64(b[40:]),
		Quorum: le.Uint32(b[48:]), Members: map[uint32]Member{}, Positions: map[uint64]uint64{},
	}
	members, closed, positions, piece := le.Uint32(b[52:]), le.Uint32(b[56:]), le.Uint32(b[60:]), le.Uint32(b[64:])
	if !zero(b[68:72]) || j.Generation == 0 || j.First == 0 || j.LastClosed < j.First-1 || members < 1 ||
		members > maxRanks || j.Quorum > members || closed > maxClosed || positions > maxPositions {
		return nil
	}
	open := 0
	if piece > 0 {
		open = 152
	}
	b = b[72:]
	if len(b) < 24*int(members)+136*int(closed)+open+16*int(positions) {
		return nil
	}
	all, last := rankSet{}, int64(-1)
	for range members {
		rank, inc := le.Uint32(b), le.Uint64(b[8:])
		if rank >= maxRanks || int64(rank) <= last || inc == 0 || !zero(b[4:8]) {
			return nil
		}
		last, j.Members[rank] = int64(rank), Member{inc, le.Uint64(b[16:])}
		all[rank/64] |= 1 << (rank % 64)
		b = b[24:]
	}
	before := uint64(0)
	for range closed {
		c := Closed{le.Uint64(b), decodeRanks(b[8:])}
		if c.Step <= before || c.Step > j.LastClosed || c.With == (rankSet{}) {
			return nil
		}
		before, j.Closed, b = c.Step, append(j.Closed, c), b[136:]
	}
	if piece > 0 {
		j.Open = &Open{le.Uint64(b), piece, decodeRanks(b[24:]), le.Uint64(b[8:]), le.Uint64(b[16:])}
		if o := j.Open; o.Step <= j.LastClosed || o.With == (rankSet{}) || !o.With.within(all) || o.Table == 0 && o.Key != 0 {
			return nil
		}
		b = b[152:]
	}
	read, ok := decodePositions(b[:16*positions])
	if !ok {
		return nil
	}
	j.note(read)
	return b[16*positions:]
}

func decodeRanks(b []byte) (s rankSet) {
	for i := range s {
		s[i] = le.Uint64(b[8*i:])
	}
	return s
}

// diffJobs describes the first difference between the jobs of two states.
func diffJobs(a, b map[rowraft.JobID]*Job) string {
	for _, id := range keysOfBothFunc(a, b, func(x, y rowraft.JobID) int { return bytes.Compare(x[:], y[:]) }) {
		x, y := a[id], b[id]
		if x == nil || y == nil {
			return fmt.Sprintf("job %x: one knows it, the other does not", id[:4])
		}
		if !reflect.DeepEqual(x, y) {
			return fmt.Sprintf("job %x: %+v, %+v", id[:4], *x, *y)
		}
	}
	return ""
}
