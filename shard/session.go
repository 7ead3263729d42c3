package shard

import (
	"bytes"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/wire"
)

// Limits of sessions. They are constants of apply version 1: replicas that
// differed in one of them would answer differently.
const (
	// Window is how many numbers above its floor a session may have unanswered.
	Window = checkpoint.WindowBits
	// MaxSessions is how many clients a shard remembers.
	MaxSessions = 4096
	// SessionTTL is how much logged time a session lives after its last part.
	SessionTTL = 24 * time.Hour
)

// sessions is who may push: client → incarnation, floor and the numbers
// answered above it. Ascending by client, so that walking it is deterministic.
type sessions []*checkpoint.Session

// find returns the place of client, or where it belongs, and its session or nil.
func (t sessions) find(client rowraft.ClientID) (at int, s *checkpoint.Session) {
	at, ok := slices.BinarySearchFunc(t, client, func(s *checkpoint.Session, c rowraft.ClientID) int {
		return bytes.Compare(s.Client[:], c[:])
	})
	if !ok {
		return at, nil
	}
	return at, t[at]
}

// open makes (client, inc) the client's session at log time now.
func (t *sessions) open(client rowraft.ClientID, inc rowraft.Incarnation, now uint64) error {
	if inc == 0 {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "open a session of client %x: incarnation 0; the scheduler issues them from 1", client[:4])
	}
	at, s := t.find(client)
	switch {
	case s == nil:
		if len(*t) >= MaxSessions && !t.evict(now) {
			return &rowraft.OverloadedError{What: "the shard remembers as many sessions as it can, and none has expired", RetryAfter: time.Minute}
		}
		at, _ := t.find(client)
		*t = slices.Insert(*t, at, &checkpoint.Session{Client: client, Incarnation: inc, LastUsed: now})
		return nil
	case s.Incarnation > inc:
		return fenced(s, inc)
	case s.Incarnation < inc:
		(*t)[at] = &checkpoint.Session{Client: client, Incarnation: inc, LastUsed: now}
		return nil
	case expired(s, now):
		return tooOld(s)
	}
	used := *s // a snapshot may have s
	used.LastUsed = now
	(*t)[at] = &used // a copy of the entry that opened it
	return nil
}

// evict forgets the expired session that was used least recently, of several the
// lowest client.
func (t *sessions) evict(now uint64) bool {
	victim := -1
	for i, s := range *t {
		if expired(s, now) && (victim < 0 || s.LastUsed < (*t)[victim].LastUsed) {
			victim = i
		}
	}
	if victim < 0 {
		return false
	}
	*t = slices.Delete(*t, victim, victim+1)
	return true
}

// check returns the session a part names, to be looked at only, or CodeSessionExpired.
func (t sessions) check(client rowraft.ClientID, inc rowraft.Incarnation, now uint64) (*checkpoint.Session, error) {
	_, s := t.find(client)
	switch {
	case s == nil:
		return nil, rowraft.Errorf(rowraft.CodeSessionExpired, "client %x has no session in this shard: it was never opened or has expired", client[:4])
	case s.Incarnation > inc:
		return nil, fenced(s, inc)
	case s.Incarnation < inc:
		return nil, rowraft.Errorf(rowraft.CodeSessionExpired, "client %x: incarnation %d was not opened in this shard, which knows %d", client[:4], inc, s.Incarnation)
	case expired(s, now):
		return nil, tooOld(s)
	}
	return s, nil
}

func expired(s *checkpoint.Session, now uint64) bool {
	return now > s.LastUsed && now-s.LastUsed > uint64(SessionTTL)
}

func fenced(s *checkpoint.Session, inc rowraft.Incarnation) error {
	return rowraft.Errorf(rowraft.CodeSessionExpired, "client %x: incarnation %d was fenced by incarnation %d", s.Client[:4], inc, s.Incarnation)
}

func tooOld(s *checkpoint.Session) error {
	return rowraft.Errorf(rowraft.CodeSessionExpired, "client %x: the session of incarnation %d expired: it was not used for %v", s.Client[:4], s.Incarnation, SessionTTL)
}

// verdict is what a session says about a number.
type verdict uint8

const (
	fresh    verdict = iota // not answered yet
	answered                // applied, or below the floor
)

// look says what s knows of the number of p. The error is that of a number that
// was refused before, of one that no client sends (CodeInvalidArgument), or of
// one too far above the floor (CodeOverloaded); only the first is an answer.
func look(s *checkpoint.Session, p *wire.Part) (verdict, error) {
	floor := max(s.Floor, p.Floor)
	switch {
	case p.Seq == 0:
		return fresh, rowraft.Errorf(rowraft.CodeInvalidArgument, "sequence number 0: they start at 1")
	case p.Floor >= p.Seq:
		return fresh, rowraft.Errorf(rowraft.CodeInvalidArgument, "sequence number %d is not above the client's own floor %d", p.Seq, p.Floor)
	case p.Seq <= s.Floor:
		return answered, nil
	case p.Seq-floor > Window:
		return fresh, &rowraft.OverloadedError{What: "more than 1024 pushes of one session are unanswered", RetryAfter: 10 * time.Millisecond}
	case p.Seq-s.Floor > Window || s.Window[p.Seq%Window/64]>>(p.Seq%64)&1 == 0:
		return fresh, nil
	}
	if i, ok := slices.BinarySearchFunc(s.Refused, p.Seq, compareRefusal); ok {
		return answered, rowraft.Errorf(s.Refused[i].Code, "sequence number %d was refused when it first arrived (%s); nothing of it was applied", p.Seq, s.Refused[i].Code)
	}
	return answered, nil
}

func compareRefusal(r checkpoint.Refusal, n rowraft.Seq) int {
	switch {
	case r.Seq < n:
		return -1
	case r.Seq > n:
		return 1
	}
	return 0
}

// raise moves the floor of s up to floor and forgets what lies below it.
func raise(s *checkpoint.Session, floor rowraft.Seq) {
	if floor <= s.Floor {
		return
	}
	if floor-s.Floor >= Window {
		s.Window = [Window / 64]uint64{}
	} else {
		for n := s.Floor + 1; n <= floor; n++ {
			s.Window[n%Window/64] &^= 1 << (n % 64)
		}
	}
	s.Floor = floor
	keep := 0
	for keep < len(s.Refused) && s.Refused[keep].Seq <= floor {
		keep++
	}
	s.Refused = slices.Delete(s.Refused, 0, keep)
}

// answer records that n has its answer: err, or that it was applied.
// REQUIRES: look(n) was fresh and raise has been called.
func answer(s *checkpoint.Session, n rowraft.Seq, err error) {
	s.Window[n%Window/64] |= 1 << (n % 64)
	if err == nil {
		return
	}
	i, _ := slices.BinarySearchFunc(s.Refused, n, compareRefusal)
	s.Refused = slices.Insert(s.Refused, i, checkpoint.Refusal{Seq: n, Code: rowraft.CodeOf(err)})
}

// shareSessions returns all sessions for a snapshot; from now on they are changed
// as copies.
func (st *state) shareSessions() []*checkpoint.Session {
	st.private = make(map[*checkpoint.Session]bool)
	return slices.Clone(st.sessions)
}

// own returns s, or a copy in its place if a snapshot shares it: what may be changed.
func (st *state) own(s *checkpoint.Session) *checkpoint.Session {
	if st.private == nil || st.private[s] {
		return s
	}
	c := *s
	c.Refused = slices.Clone(s.Refused)
	at, _ := st.sessions.find(s.Client)
	st.sessions[at] = &c
	st.private[&c] = true
	return &c
}
