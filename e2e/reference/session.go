package reference

import (
	"bytes"
	"maps"

	"github.com/rowraft/rowraft"
)

func (m *Machine) expired(s *Session) bool {
	return m.LogTime > s.LastUsed && m.LogTime-s.LastUsed > sessionTTL
}

func (m *Machine) open(client rowraft.ClientID, inc rowraft.Incarnation) rowraft.Code {
	if inc == 0 {
		return rowraft.CodeInvalidArgument
	}
	s := m.Sessions[client]
	switch {
	case s == nil && len(m.Sessions) == maxSessions && !m.makeRoom():
		return rowraft.CodeOverloaded
	case s == nil || s.Incarnation < inc:
		m.Sessions[client] = &Session{Incarnation: inc, LastUsed: m.LogTime, Answered: map[rowraft.Seq]rowraft.Code{}}
		return rowraft.CodeUnknown
	case s.Incarnation > inc || m.expired(s):
		return rowraft.CodeSessionExpired
	}
	s.LastUsed = m.LogTime
	return rowraft.CodeUnknown
}

// makeRoom forgets one expired session, if there is one.
func (m *Machine) makeRoom() bool {
	var victim rowraft.ClientID
	var oldest *Session
	for c, s := range m.Sessions {
		if !m.expired(s) {
			continue
		}
		if oldest == nil || s.LastUsed < oldest.LastUsed || s.LastUsed == oldest.LastUsed && bytes.Compare(c[:], victim[:]) < 0 {
			victim, oldest = c, s
		}
	}
	delete(m.Sessions, victim)
	return oldest != nil
}

// applyPart follows the table of docs/formats/entry.md line by line.
func (m *Machine) applyPart(p part) Answer {
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
	s.Floor = max(s.Floor, p.floor)
	maps.DeleteFunc(s.Answered, func(n rowraft.Seq, _ rowraft.Code) bool { return n <= s.Floor })

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
