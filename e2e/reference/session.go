package reference

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	"github.com/rowraft/rowraft"
)

func (m *Machine) expired(s *Session) bool {
	return m.LogTime > s.LastUsed && m.LogTime-s.LastUsed > sessionTTL
}

// Over is a session that has ended.
type Over struct {
	Client      rowraft.ClientID
	Incarnation rowraft.Incarnation
	Index       rowraft.Index // of the entry that ended it
}

// open follows the table of docs/formats/entry.md, kind 2, line by line.
func (m *Machine) open(client rowraft.ClientID, inc rowraft.Incarnation, ticket rowraft.Index) rowraft.Code {
	if inc == 0 {
		return rowraft.CodeInvalidArgument
	}
	s := m.Sessions[client]
	if s != nil && s.Incarnation > inc {
		return rowraft.CodeSessionExpired
	}
	if s != nil && s.Incarnation == inc {
		if m.expired(s) {
			return rowraft.CodeSessionExpired
		}
		s.LastUsed = m.LogTime
		return rowraft.CodeUnknown
	}
	for _, o := range m.Over {
		if o.Client == client && o.Incarnation >= inc {
			return rowraft.CodeSessionExpired
		}
	}
	if ticket < m.OverFloor {
		return rowraft.CodeOverloaded
	}
	if s == nil && !m.room(client) {
		return rowraft.CodeOverloaded
	}
	m.Sessions[client] = &Session{Incarnation: inc, LastUsed: m.LogTime, Answered: map[rowraft.Seq]rowraft.Code{}}
	return rowraft.CodeUnknown
}

// room reports whether there is room for a session of client. It evicts another session if necessary.
func (m *Machine) room(client rowraft.ClientID) bool {
	var all, own []rowraft.ClientID
	for c := range m.Sessions {
		all = append(all, c)
		if [8]byte(c[:8]) == [8]byte(client[:8]) {
			own = append(own, c)
		}
	}
	from := all
	switch {
	case len(own) == maxOwnerSessions:
		from = own
	case len(all) < maxSessions:
		return true
	}
	victim := slices.MinFunc(from, func(a, b rowraft.ClientID) int {
		x, y := m.Sessions[a], m.Sessions[b]
		return cmp.Or(cmp.Compare(m.rank(x), m.rank(y)), cmp.Compare(x.LastUsed, y.LastUsed), bytes.Compare(a[:], b[:]))
	})
	if m.rank(m.Sessions[victim]) == 5 {
		return false
	}
	m.close(victim, m.Sessions[victim].Incarnation)
	return true
}

// rank is the order in which sessions are evicted; a session of rank 5 is not evicted.
func (m *Machine) rank(s *Session) int {
	highest := s.Floor
	for n := range s.Answered {
		highest = max(highest, n)
	}
	complete := highest-s.Floor == rowraft.Seq(len(s.Answered))
	unused := uint64(0)
	if m.LogTime > s.LastUsed {
		unused = m.LogTime - s.LastUsed
	}
	switch {
	case m.expired(s):
		return 1
	case highest == 0 && unused > 10*second:
		return 2
	case highest > 0 && complete && unused > 60*second:
		return 3
	case unused > 3600*second:
		return 4
	}
	return 5
}

// close ends the session of client if it has this incarnation.
func (m *Machine) close(client rowraft.ClientID, inc rowraft.Incarnation) {
	if s := m.Sessions[client]; s == nil || s.Incarnation != inc {
		return
	}
	delete(m.Sessions, client)
	m.Over = append(m.Over, Over{client, inc, m.Applied})
	if len(m.Over) > maxOver {
		m.OverFloor = m.Over[0].Index
		m.Over = m.Over[1:]
	}
}

// applySum applies the sum of the pushes of several clients if all of them are new, and else changes nothing.
func (m *Machine) applySum(p part) Answer {
	refused := Answer{Code: rowraft.CodePrecondition}
	for _, c := range p.contributors {
		s := m.Sessions[c.client]
		if s == nil || s.Incarnation != c.incarnation || m.expired(s) || c.floor >= c.seq || c.seq <= s.Floor ||
			c.seq-max(s.Floor, c.floor) > window {
			return refused
		}
		if _, before := s.Answered[c.seq]; before {
			return refused
		}
	}
	segments, code := m.checkPayload(opSum, p.payload)
	if code != rowraft.CodeUnknown {
		return refused
	}
	for _, seg := range segments {
		for _, n := range seg.counts {
			if n < 1 || n > len(p.contributors) {
				return refused
			}
		}
	}
	for _, seg := range segments {
		m.applySegment(opSum, seg)
	}
	for _, c := range p.contributors {
		s := m.Sessions[c.client]
		s.LastUsed = m.LogTime
		s.raiseFloor(c.floor)
		s.Answered[c.seq] = rowraft.CodeUnknown
	}
	return Answer{}
}

// raiseFloor forgets the answers up to floor.
func (s *Session) raiseFloor(floor rowraft.Seq) {
	s.Floor = max(s.Floor, floor)
	maps.DeleteFunc(s.Answered, func(n rowraft.Seq, _ rowraft.Code) bool { return n <= s.Floor })
}

// applyPart follows the table of docs/formats/entry.md line by line.
func (m *Machine) applyPart(p part) Answer {
	if p.op == opSum {
		return m.applySum(p)
	}
	s := m.Sessions[p.client]
	if s == nil || s.Incarnation != p.incarnation || m.expired(s) {
		return Answer{Code: rowraft.CodeSessionExpired}
	}
	s.LastUsed = m.LogTime
	if p.seq == 0 || p.floor >= p.seq {
		return Answer{Code: rowraft.CodeInvalidArgument}
	}
	if p.seq <= s.Floor {
		return Answer{Duplicate: true}
	}
	if p.seq-max(s.Floor, p.floor) > window {
		return Answer{Code: rowraft.CodeOverloaded}
	}
	if code, before := s.Answered[p.seq]; before {
		return Answer{Code: code, Duplicate: code == rowraft.CodeUnknown}
	}
	s.raiseFloor(p.floor)

	op, payload, setClock, code := p.op, p.payload, func() {}, rowraft.CodeUnknown
	if op == opClocked {
		op = opPush
		payload, setClock, code = m.clocked(p.payload)
	}
	var segments []segment
	if code == rowraft.CodeUnknown {
		segments, code = m.checkPayload(op, payload)
	}
	if code == rowraft.CodeUnknown {
		for _, seg := range segments {
			m.applySegment(op, seg)
		}
		setClock()
	}
	s.Answered[p.seq] = code
	return Answer{Code: code}
}
