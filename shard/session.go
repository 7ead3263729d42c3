package shard

import (
	"bytes"
	"fmt"
	"math"
	"math/bits"
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
	MaxSessions = rowraft.MaxSessions
	// MaxOwnerSessions is how many of them may be of one owner: the owner is the first
	// half of a client id (docs/formats/certificate.md).
	MaxOwnerSessions = rowraft.MaxOwnerSessions
	// SessionTTL is how much logged time a session lives after its last part.
	SessionTTL = 24 * time.Hour
	// A session makes room for another one after this much logged time without a part: one
	// that never had a part, one with an answer to each number up to its highest, and any
	// other, whose client waits for the answer to a batch or is gone.
	UnusedAfter = 10 * time.Second
	IdleAfter   = time.Minute
	SilentAfter = time.Hour
	// MaxEnded is how many sessions that are over are remembered one by one.
	MaxEnded = checkpoint.MaxEnded

	sessionRetry = 2 * time.Second
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

// ofOwner returns where the sessions of the owner of client are.
func (t sessions) ofOwner(client rowraft.ClientID) (from, to int) {
	owner := func(c rowraft.ClientID) []byte { return c[:len(c)/2] }
	from, _ = slices.BinarySearchFunc(t, client, func(s *checkpoint.Session, c rowraft.ClientID) int {
		return bytes.Compare(owner(s.Client), owner(c))
	})
	for to = from; to < len(t) && bytes.Equal(owner(t[to].Client), owner(client)); {
		to++
	}
	return from, to
}

// ended is which sessions are over. Its purpose: a session that is over never opens again,
// whatever arrives late. Otherwise a delayed copy of the request that opened a session, and
// behind it a delayed copy of a push in it, would apply that push a second time.
//
// The last MaxEnded are remembered one by one. None of such a client opens with an
// incarnation up to the one that ended. That list alone would grow forever with clients that
// never return, so what falls out of it raises floor, the index at which it ended, and a
// request whose ticket is below floor opens nothing.
//
// Why that is enough. A ticket is an index that the shard had applied when the client asked
// for it. A client asks only before its session of an incarnation is open, and opens no
// session with that incarnation in the shard later. A leader logs each opening, so its index
// is above the ticket, and the session that the client then has ends at an index m above
// that. Every copy of every request that asked for this session thus has a ticket below m,
// and finds either the session in the list, or floor ≥ m. (Before the client knows that its
// session is open it has pushed nothing, so a session that ended before may open again.)
//
// Why not one floor of incarnations, which the scheduler counts for the whole cluster: a
// client that opens its session late, or slowly, would be refused as soon as a later one had
// closed, and an invented incarnation of 2^63 would lock the shard for good. A ticket is
// refused only if MaxEnded sessions ended since it was given, the client asks for another
// one then, and an invented one harms only its inventor.
type ended struct {
	// list is only appended to and cut at its front: snapshots share it.
	list  []checkpoint.EndedSession
	floor rowraft.Index
	last  map[rowraft.ClientID]rowraft.Incarnation // the highest in list of each client; never walked
}

// add remembers that the session of (client, inc) ended at index at, the present one.
func (e *ended) add(client rowraft.ClientID, inc rowraft.Incarnation, at rowraft.Index) {
	if len(e.list) >= MaxEnded {
		old := e.list[0]
		e.list, e.floor = e.list[1:], old.Index
		if e.last[old.Client] == old.Incarnation {
			delete(e.last, old.Client)
		}
	}
	if e.last == nil {
		e.last = make(map[rowraft.ClientID]rowraft.Incarnation)
	}
	e.list = append(e.list, checkpoint.EndedSession{Client: client, Incarnation: inc, Index: at})
	e.last[client] = inc
}

// restore takes what a snapshot holds.
func (e *ended) restore(from checkpoint.Ended) {
	e.list, e.floor = from.List, from.Floor
	e.last = make(map[rowraft.ClientID]rowraft.Incarnation, len(e.list))
	for _, s := range e.list {
		e.last[s.Client] = max(e.last[s.Client], s.Incarnation)
	}
}

// refuse reports why (client, inc), which has no session, cannot have one: nil if it can.
func (e *ended) refuse(o *wire.Opening) error {
	switch last := e.last[o.Client]; {
	case last > o.Incarnation:
		return fenced(o.Client, o.Incarnation, last)
	case last == o.Incarnation:
		return over(o.Client, o.Incarnation, "it was closed, or made room for another one")
	case o.Ticket < e.floor:
		return &rowraft.OverloadedError{
			What:       fmt.Sprintf("client %x asked for its session at index %d, and more than %d sessions have ended since: ask again", o.Client[:4], o.Ticket, MaxEnded),
			RetryAfter: 10 * time.Millisecond,
		}
	}
	return nil
}

// mayOpen reports why o does not become the session of its client at log time now.
// evict is which session makes room for it, -1 if none has to.
func (st *state) mayOpen(o *wire.Opening, now uint64) (evict int, err error) {
	if o.Incarnation == 0 {
		return -1, rowraft.Errorf(rowraft.CodeInvalidArgument, "open a session of client %x: incarnation 0; the scheduler issues them from 1", o.Client[:4])
	}
	_, s := st.sessions.find(o.Client)
	switch {
	case s != nil && s.Incarnation > o.Incarnation:
		return -1, fenced(o.Client, o.Incarnation, s.Incarnation)
	case s != nil && s.Incarnation == o.Incarnation && expired(s, now):
		return -1, tooOld(s)
	case s != nil && s.Incarnation == o.Incarnation:
		return -1, nil
	}
	if err := st.ended.refuse(o); err != nil || s != nil {
		return -1, err
	}
	from, to, limit, whose := 0, len(st.sessions), MaxSessions, "the shard"
	if a, b := st.sessions.ofOwner(o.Client); b-a >= MaxOwnerSessions {
		from, to, limit, whose = a, b, MaxOwnerSessions, fmt.Sprintf("owner %x", o.Client[:8])
	}
	if to-from < limit {
		return -1, nil
	}
	if evict = st.sessions[from:to].idlest(now); evict < 0 {
		return -1, &rowraft.OverloadedError{
			What:       fmt.Sprintf("%s has %d sessions, the limit, and all of them are in use: run fewer clients, or close those that are done", whose, limit),
			RetryAfter: sessionRetry,
		}
	}
	return from + evict, nil
}

// open makes o the session of its client, at index at and log time now, and reports
// whether another session made room.
func (st *state) open(o *wire.Opening, at rowraft.Index, now uint64) (evicted bool, err error) {
	evict, err := st.mayOpen(o, now)
	if err != nil {
		return false, err
	}
	if evict >= 0 {
		st.endSession(evict, at)
	}
	fresh := &checkpoint.Session{Client: o.Client, Incarnation: o.Incarnation, LastUsed: now}
	i, s := st.sessions.find(o.Client)
	switch {
	case s == nil:
		st.sessions = slices.Insert(st.sessions, i, fresh)
	case s.Incarnation < o.Incarnation:
		st.sessions[i] = fresh
	default: // a copy of the request that opened it
		used := *s // a snapshot may have s
		used.LastUsed = now
		st.sessions[i] = &used
	}
	return evict >= 0, nil
}

// closeSession ends the session of (client, inc), if there is one.
func (st *state) closeSession(client rowraft.ClientID, inc rowraft.Incarnation, at rowraft.Index) {
	if i, s := st.sessions.find(client); s != nil && s.Incarnation == inc {
		st.endSession(i, at)
	}
}

func (st *state) endSession(i int, at rowraft.Index) {
	s := st.sessions[i]
	st.sessions = slices.Delete(st.sessions, i, i+1)
	st.ended.add(s.Client, s.Incarnation, at)
}

// idlest returns which of t makes room, -1 if none can: of those of the lowest class the
// one that was used least recently, and of several the lowest client.
func (t sessions) idlest(now uint64) int {
	victim, best := -1, inUse
	for i, s := range t {
		// Most sessions cannot come before the victim, which is quick to tell: a full shard
		// looks at all of them for each new one.
		if victim >= 0 && s.LastUsed >= t[victim].LastUsed && (best <= isUnused || best == isIdle && !unused(s)) {
			continue
		}
		if c := roomClass(s, now); c < best || c == best && c < inUse && s.LastUsed < t[victim].LastUsed {
			victim, best = i, c
		}
	}
	return victim
}

// class is how soon a session makes room; a lower one does so first.
type class uint8

const (
	isExpired class = iota
	isUnused
	isIdle
	isSilent
	inUse // makes no room
)

func roomClass(s *checkpoint.Session, now uint64) class {
	idle := time.Duration(0)
	if now > s.LastUsed {
		idle = time.Duration(min(now-s.LastUsed, math.MaxInt64))
	}
	switch {
	case idle > SessionTTL:
		return isExpired
	case idle <= UnusedAfter:
		return inUse
	case unused(s):
		return isUnused
	case idle > IdleAfter && !hasGap(s):
		return isIdle
	case idle > SilentAfter:
		return isSilent
	}
	return inUse
}

// unused reports whether s never had a part.
func unused(s *checkpoint.Session) bool { return s.Floor == 0 && s.Window == [Window / 64]uint64{} }

// hasGap reports whether s has not answered a number below one that it has.
func hasGap(s *checkpoint.Session) bool {
	set := 0
	for _, w := range s.Window {
		set += bits.OnesCount64(w)
	}
	run := 0
	for n := s.Floor + 1; run < set && s.Window[n%Window/64]>>(n%64)&1 == 1; n++ {
		run++
	}
	return run < set
}

// check returns the session a part names, to be looked at only, or CodeSessionExpired.
func (st *state) check(client rowraft.ClientID, inc rowraft.Incarnation, now uint64) (*checkpoint.Session, error) {
	_, s := st.sessions.find(client)
	switch {
	case s == nil && st.ended.last[client] > inc:
		return nil, fenced(client, inc, st.ended.last[client])
	case s == nil:
		return nil, over(client, inc, "it was never opened in this shard, was closed, expired, or made room for another one")
	case s.Incarnation > inc:
		return nil, fenced(client, inc, s.Incarnation)
	case s.Incarnation < inc:
		return nil, over(client, inc, fmt.Sprintf("it was not opened in this shard, which knows incarnation %d", s.Incarnation))
	case expired(s, now):
		return nil, tooOld(s)
	}
	return s, nil
}

func expired(s *checkpoint.Session, now uint64) bool {
	return now > s.LastUsed && now-s.LastUsed > uint64(SessionTTL)
}

func fenced(client rowraft.ClientID, inc, by rowraft.Incarnation) error {
	return rowraft.Errorf(rowraft.CodeSessionExpired, "client %x: incarnation %d was fenced by incarnation %d", client[:4], inc, by)
}

func over(client rowraft.ClientID, inc rowraft.Incarnation, why string) error {
	return &rowraft.SessionEndedError{What: fmt.Sprintf("client %x has no session of incarnation %d: %s", client[:4], inc, why)}
}

func tooOld(s *checkpoint.Session) error {
	return over(s.Client, s.Incarnation, fmt.Sprintf("it expired, because it was not used for %v", SessionTTL))
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

// share returns all of e for a snapshot.
func (e *ended) share() checkpoint.Ended { return checkpoint.Ended{Floor: e.floor, List: e.list} }

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
