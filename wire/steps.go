package wire

import (
	"math/bits"

	"github.com/rowraft/rowraft"
)

// The entries of training in step (docs/formats/steps.md).
const (
	EntryMembership EntryKind = 12 // the members of a job
	EntryStep       EntryKind = 13 // one piece of the mean gradients of a step
)

// OpClocked is a push whose payload begins with a Clock.
const OpClocked Op = 4

const (
	membershipFixed = 48
	memberSize      = 16
	stepFixed       = 64
	clockFixed      = 40
	positionSize    = 16

	// MaxJobPositions is how many positions a shard stores for a job.
	MaxJobPositions = 4096
	// MaxPushPositions is how many positions one push may carry.
	MaxPushPositions = 64
)

// Member is one worker of a job.
type Member struct {
	Rank        rowraft.Rank
	Incarnation rowraft.Incarnation
}

// Membership lists the members of a job. A membership without members, in which all fields except
// Job are zero, ends the job.
type Membership struct {
	Job        rowraft.JobID
	Generation rowraft.Generation // from 1
	First      rowraft.Step       // from 1
	Deadline   uint64             // nanoseconds after the first part of a step; 0: no deadline
	Quorum     int                // number of members that close a step; 0: all
	Members    []Member           // ascending by rank
}

// Validate returns an error for the first impossible field.
//
// Errors: CodeInvalidArgument.
func (m *Membership) Validate() error {
	if len(m.Members) == 0 {
		if m.Generation != 0 || m.First != 0 || m.Deadline != 0 || m.Quorum != 0 {
			return rowraft.Errorf(rowraft.CodeInvalidArgument,
				"job %x: a membership without members must have zero in all other fields", m.Job[:4])
		}
		return nil
	}
	switch {
	case m.Generation == 0 || m.First == 0:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "job %x: generation %d with first step %d: want both at least 1",
			m.Job[:4], m.Generation, m.First)
	case len(m.Members) > rowraft.MaxRanks || m.Quorum < 0 || m.Quorum > len(m.Members):
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"job %x: quorum %d with %d members: want a quorum of 0 to all members, and at most %d members",
			m.Job[:4], m.Quorum, len(m.Members), rowraft.MaxRanks)
	}
	for i, w := range m.Members {
		if w.Rank >= rowraft.MaxRanks || w.Incarnation == 0 || i > 0 && w.Rank <= m.Members[i-1].Rank {
			return rowraft.Errorf(rowraft.CodeInvalidArgument,
				"job %x: rank %d with incarnation %d at position %d: want ascending ranks less than %d, and incarnations of at "+
					"least 1",
				m.Job[:4], w.Rank, w.Incarnation, i, rowraft.MaxRanks)
		}
	}
	return nil
}

// MembershipEntry returns the entry of m, which must be valid.
func MembershipEntry(h EntryHeader, m *Membership) []byte {
	h.Kind, h.Parts = EntryMembership, 0
	b := make([]byte, EntryHeaderSize, EntryHeaderSize+membershipFixed+memberSize*len(m.Members))
	PutEntryHeader(b, h)
	b = append(b, m.Job[:]...)
	b = le.AppendUint64(b, uint64(m.Generation))
	b = le.AppendUint64(b, uint64(m.First))
	b = le.AppendUint64(b, m.Deadline)
	b = le.AppendUint32(b, uint32(m.Quorum))
	b = le.AppendUint32(b, uint32(len(m.Members)))
	for _, w := range m.Members {
		b = le.AppendUint32(b, uint32(w.Rank))
		b = le.AppendUint32(b, 0)
		b = le.AppendUint64(b, uint64(w.Incarnation))
	}
	return b
}

// ParseMembership reads the body of a membership entry. Errors: CodeCorrupt.
func ParseMembership(b []byte) (m Membership, err error) {
	if len(b) < membershipFixed || len(b) != membershipFixed+memberSize*int(le.Uint32(b[44:])) {
		return m, rowraft.Errorf(rowraft.CodeCorrupt, "membership entry has %d bytes", len(b))
	}
	m = Membership{
		Job: rowraft.JobID(b[:16]), Generation: rowraft.Generation(le.Uint64(b[16:])), First: rowraft.Step(le.Uint64(b[24:])),
		Deadline: le.Uint64(b[32:]), Quorum: int(le.Uint32(b[40:])),
	}
	for b = b[membershipFixed:]; len(b) > 0; b = b[memberSize:] {
		if le.Uint32(b[4:]) != 0 {
			return m, rowraft.Errorf(rowraft.CodeCorrupt, "membership entry has reserved bytes that are not 0")
		}
		m.Members = append(m.Members, Member{rowraft.Rank(le.Uint32(b)), rowraft.Incarnation(le.Uint64(b[8:]))})
	}
	if err := m.Validate(); err != nil {
		return m, rowraft.Errorf(rowraft.CodeCorrupt, "%w", err)
	}
	return m, nil
}

// RankSet is a set of ranks.
type RankSet [rowraft.MaxRanks / 64]uint64

// Add adds r to s.
func (s *RankSet) Add(r rowraft.Rank) { s[r/64] |= 1 << (r % 64) }

// Has reports whether r is in s.
func (s *RankSet) Has(r rowraft.Rank) bool { return s[r/64]>>(r%64)&1 != 0 }

// Len returns the number of ranks in s.
func (s *RankSet) Len() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// Within reports whether all ranks of s are in o.
func (s *RankSet) Within(o *RankSet) bool {
	for i, w := range s {
		if w&^o[i] != 0 {
			return false
		}
	}
	return true
}

func (s *RankSet) words() int {
	n := len(s)
	for n > 0 && s[n-1] == 0 {
		n--
	}
	return n
}

// Step is one piece of a step.
type Step struct {
	Job          rowraft.JobID
	Generation   rowraft.Generation
	Step         rowraft.Step
	Piece        uint32          // from 0
	Last         bool            // closes the step
	AfterTable   rowraft.TableID // last row of the step in earlier pieces; 0: none
	AfterKey     rowraft.Key
	Contributors RankSet
	Positions    []rowraft.Position // ascending by part
	Payload      []byte             // segments, tables ascending
}

// Size returns the size of the entry of s in bytes.
func (s *Step) Size() int {
	return EntryHeaderSize + stepFixed + 8*s.Contributors.words() + positionSize*len(s.Positions) + len(s.Payload)
}

// AppendStepEntry appends the entry of s, which must have a contributor.
func AppendStepEntry(dst []byte, h EntryHeader, s *Step) []byte {
	h.Kind, h.Parts = EntryStep, 0
	at := len(dst)
	dst = append(dst, make([]byte, EntryHeaderSize)...)
	PutEntryHeader(dst[at:], h)
	dst = append(dst, s.Job[:]...)
	dst = le.AppendUint64(dst, uint64(s.Generation))
	dst = le.AppendUint64(dst, uint64(s.Step))
	dst = le.AppendUint32(dst, s.Piece)
	last := byte(0)
	if s.Last {
		last = 1
	}
	words := s.Contributors.words()
	dst = append(dst, last, byte(words), 0, 0)
	dst = le.AppendUint32(dst, uint32(len(s.Positions)))
	dst = le.AppendUint32(dst, 0)
	dst = le.AppendUint64(dst, uint64(s.AfterTable))
	dst = le.AppendUint64(dst, uint64(s.AfterKey))
	for _, w := range s.Contributors[:words] {
		dst = le.AppendUint64(dst, w)
	}
	dst = appendPositions(dst, s.Positions)
	return append(dst, s.Payload...)
}

// ParseStep reads the body of a step entry; Payload aliases it.
// Errors: CodeCorrupt.
func ParseStep(b []byte) (s Step, err error) {
	corrupt := func() (Step, error) {
		return s, rowraft.Errorf(rowraft.CodeCorrupt, "step entry of %d bytes has impossible fields", len(b))
	}
	if len(b) < stepFixed {
		return corrupt()
	}
	s = Step{
		Job: rowraft.JobID(b[:16]), Generation: rowraft.Generation(le.Uint64(b[16:])), Step: rowraft.Step(le.Uint64(b[24:])),
		Piece: le.Uint32(b[32:]), Last: b[36] == 1, AfterTable: rowraft.TableID(le.Uint64(b[48:])),
		AfterKey: rowraft.Key(le.Uint64(b[56:])),
	}
	words, n := int(b[37]), int(le.Uint32(b[40:]))
	if s.Step == 0 || b[36] > 1 || le.Uint16(b[38:]) != 0 || le.Uint32(b[44:]) != 0 || words < 1 ||
		words > len(s.Contributors) || n > MaxJobPositions {
		return corrupt()
	}
	rest := b[stepFixed:]
	if len(rest) < 8*words+positionSize*n {
		return corrupt()
	}
	for i := range words {
		s.Contributors[i] = le.Uint64(rest[8*i:])
	}
	if s.Contributors[words-1] == 0 {
		return corrupt()
	}
	positions, ok := parsePositions(rest[8*words:][:positionSize*n])
	if !ok {
		return corrupt()
	}
	s.Positions, s.Payload = positions, rest[8*words+positionSize*n:]
	return s, nil
}

// Clock is the start of the payload of an OpClocked.
type Clock struct {
	Job         rowraft.JobID
	Incarnation rowraft.Incarnation
	Rank        rowraft.Rank
	Clock       uint64             // batches that the worker has pushed
	Positions   []rowraft.Position // ascending by part
}

// Size returns the size of c in bytes, a multiple of 8.
func (c *Clock) Size() int { return clockFixed + positionSize*len(c.Positions) }

// AppendClock appends c.
func AppendClock(dst []byte, c *Clock) []byte {
	dst = append(dst, c.Job[:]...)
	dst = le.AppendUint64(dst, uint64(c.Incarnation))
	dst = le.AppendUint64(dst, c.Clock)
	dst = le.AppendUint32(dst, uint32(c.Rank))
	dst = le.AppendUint32(dst, uint32(len(c.Positions)))
	return appendPositions(dst, c.Positions)
}

// ParseClock reads the clock at the start of a payload and returns the segments
// after it. Errors: CodeInvalidArgument.
func ParseClock(payload []byte) (c Clock, segments []byte, err error) {
	if len(payload) < clockFixed {
		return c, nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"clocked push of %d bytes: want a clock of at least %d bytes", len(payload), clockFixed)
	}
	c = Clock{
		Job: rowraft.JobID(payload[:16]), Incarnation: rowraft.Incarnation(le.Uint64(payload[16:])),
		Clock: le.Uint64(payload[24:]), Rank: rowraft.Rank(le.Uint32(payload[32:])),
	}
	n := le.Uint32(payload[36:])
	if n > MaxPushPositions || len(payload) < clockFixed+positionSize*int(n) {
		return c, nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"clocked push of %d bytes with %d positions: want at most %d positions of %d bytes",
			len(payload), n, MaxPushPositions, positionSize)
	}
	end := clockFixed + positionSize*int(n)
	positions, ok := parsePositions(payload[clockFixed:end])
	if !ok {
		return c, nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "clocked push: data parts must be strictly ascending")
	}
	c.Positions = positions
	return c, payload[end:], nil
}

func appendPositions(dst []byte, all []rowraft.Position) []byte {
	for _, p := range all {
		dst = le.AppendUint64(dst, uint64(p.ID))
		dst = le.AppendUint64(dst, p.Offset)
	}
	return dst
}

// parsePositions reads positions of whole length. ok is false if they do not ascend by part.
func parsePositions(b []byte) (all []rowraft.Position, ok bool) {
	if len(b) > 0 {
		all = make([]rowraft.Position, 0, len(b)/positionSize)
	}
	for ; len(b) > 0; b = b[positionSize:] {
		p := rowraft.Position{ID: rowraft.PositionID(le.Uint64(b)), Offset: le.Uint64(b[8:])}
		if n := len(all); n > 0 && p.ID <= all[n-1].ID {
			return nil, false
		}
		all = append(all, p)
	}
	return all, true
}
