package shard

import (
	"bytes"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/wire"
)

// Limits of sessions. They are constants of the format version: replicas with different
// limits would return different results for one entry.
const (
	// Window is how many unacknowledged numbers above its floor a session may have.
	Window = checkpoint.WindowBits
	// MaxSessions is the largest number of sessions in a shard.
	MaxSessions = rowraft.MaxSessions
	// MaxOwnerSessions is the largest number of sessions of one owner in a shard. The first
	// half of a client id names its owner (docs/formats/certificate.md).
	MaxOwnerSessions = rowraft.MaxOwnerSessions
	// SessionTTL is the logged time for which a session lives after its last part.
	SessionTTL = 24 * time.Hour
	// A session may be evicted after this much logged time without a part. UnusedAfter is for a
	// session that never had a part. IdleAfter is for a session with a result for each number up to
	// its highest. SilentAfter is for any other session: its client waits for the result of a
	// batch, or is gone.
	UnusedAfter = 10 * time.Second
	IdleAfter   = time.Minute
	SilentAfter = time.Hour
	// MaxEnded is how many ended sessions the shard remembers individually.
	MaxEnded = checkpoint.MaxEnded

	sessionRetry = 2 * time.Second
)

// Sessions are the sessions of the clients of a shard. Its exported methods are safe for concurrent use.
type Sessions struct {
	at      *position
	evicted atomic.Uint64 // since the start; not part of a snapshot

	mu    *sync.RWMutex // of the Machine
	table sessionTable  // guarded by mu
}

// sessionTable is the part of Sessions that a snapshot holds.
//
// Invariant: only the apply goroutine changes it, and a session that is not in private is changed only in a copy,
// unless private is nil.
type sessionTable struct {
	list  sessions
	ended ended
	// private are the sessions that no snapshot shares; nil means all of them.
	private map[*session]bool
}

// begin begins a push: it checks the session of p and looks up its number. If the number is new, begin raises the floor
// of the session and returns it for record; otherwise known and err are as in lookup.
func (t *Sessions) begin(p *wire.Part, now uint64) (s *session, known bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s, err = t.table.check(p.Client, p.Incarnation, now); err != nil {
		return nil, false, err
	}
	s = t.table.writable(s)
	s.LastUsed = now
	if known, err = lookup(s, p); !known && err == nil {
		raiseFloor(s, p.Floor)
	}
	return s, known, err
}

// record records the result of number n of s: err, or nil if n was applied.
// REQUIRES: begin has returned s for n, and the same goroutine has changed no session since.
func (t *Sessions) record(s *session, n rowraft.Seq, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	record(s, n, err)
}

// lookup reports whether the number of p is known, and errors as in begin. It changes nothing.
func (t *Sessions) lookup(p *wire.Part) (known bool, err error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s, err := t.table.check(p.Client, p.Incarnation, t.at.LogTime())
	if err != nil {
		return false, err
	}
	return lookup(s, p)
}

// Evicted returns how many sessions this replica evicted for new ones since its start.
func (t *Sessions) Evicted() uint64 { return t.evicted.Load() }

// Check returns CodeSessionExpired unless (client, inc) has a session here now.
func (t *Sessions) Check(client rowraft.ClientID, inc rowraft.Incarnation) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	_, err := t.table.check(client, inc, t.at.LogTime())
	return err
}

// CheckOpen returns the error with which Apply would refuse to open o at log time now, or nil.
//
// Errors: CodeOverloaded if the shard, or the client's owner, has the largest number of sessions
// and none can be evicted; CodeSessionExpired; CodeInvalidArgument.
func (t *Sessions) CheckOpen(o *wire.Opening, now uint64) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	_, err := t.table.mayOpen(o, max(now, t.at.LogTime()))
	return err
}

// SessionUse counts the sessions of a shard.
type SessionUse struct {
	All        int
	InUse      int // sessions that cannot be evicted
	OwnerInUse int // the largest number of these that one owner has
}

// Use counts the sessions at log time now.
func (t *Sessions) Use(now uint64) (use SessionUse) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	use.All = len(t.table.list)
	var owner []byte
	own := 0
	for _, s := range t.table.list { // sorted, so the sessions of one owner are adjacent
		if !bytes.Equal(owner, s.Client[:len(s.Client)/2]) {
			owner, own = s.Client[:len(s.Client)/2], 0
		}
		if evictionClass(s, now) == inUse {
			use.InUse++
			own++
			use.OwnerInUse = max(use.OwnerInUse, own)
		}
	}
	return use
}

// open opens the session o at index at and log time now.
// REQUIRES: mu is held for writing.
func (t *Sessions) open(o *wire.Opening, at rowraft.Index, now uint64) error {
	evicted, err := t.table.open(o, at, now)
	if evicted {
		t.evicted.Add(1)
	}
	return err
}

// session is what the shard remembers of one pushing client.
type session struct {
	Client      rowraft.ClientID
	Incarnation rowraft.Incarnation
	Floor       rowraft.Seq         // every number ≤ Floor is answered
	LastUsed    uint64              // log time, nanoseconds
	Window      [Window / 64]uint64 // number n > Floor is answered if bit n mod Window is set
	Refused     []refusal           // those of the answered numbers without effect, ascending
}

// refusal is a number that was answered with an error.
type refusal struct {
	Seq  rowraft.Seq
	Code rowraft.Code
}

// sessions are the clients that may push, each with its incarnation, its floor and the results of
// numbers above the floor. They ascend by client, so that iteration is deterministic.
type sessions []*session

// find returns the position of client, or where to insert it, and its session or nil.
func (t sessions) find(client rowraft.ClientID) (at int, s *session) {
	at, ok := slices.BinarySearchFunc(t, client, func(s *session, c rowraft.ClientID) int {
		return bytes.Compare(s.Client[:], c[:])
	})
	if !ok {
		return at, nil
	}
	return at, t[at]
}

// ofOwner returns the range of the sessions of the owner of client.
func (t sessions) ofOwner(client rowraft.ClientID) (from, to int) {
	owner := func(c rowraft.ClientID) []byte { return c[:len(c)/2] }
	from, _ = slices.BinarySearchFunc(t, client, func(s *session, c rowraft.ClientID) int {
		return bytes.Compare(owner(s.Client), owner(c))
	})
	for to = from; to < len(t) && bytes.Equal(owner(t[to].Client), owner(client)); {
		to++
	}
	return from, to
}

// ended are the sessions that have ended. A session that has ended must never open again,
// whatever request arrives late. Otherwise a delayed copy of the request that opened a session,
// followed by a delayed copy of a push, would apply that push a second time.
//
// The shard remembers the last MaxEnded of them individually. A client in that list opens no
// session with an incarnation up to the one that ended. The list alone would grow forever with
// clients that never return. So when a session leaves the list, floor rises to the index at which
// that session ended, and a request with a ticket below floor opens no session.
//
// This is sufficient. A ticket is an index that the shard had applied when the client requested
// it. A client requests tickets only until its session of an incarnation is open, and never opens a
// second session with that incarnation in the shard. The leader logs each opening, so the index of
// the opening is above the ticket, and the session ends at an index m above both. So every copy
// of every request for this session has a ticket below m, and finds either the session in
// the list or floor ≥ m. (Until the client knows that its session is open it pushes nothing, so
// a session that ended before that may open again.)
//
// Rejected: one floor of incarnations, which the scheduler counts for the whole cluster. A
// client that opens its session late or slowly would be refused as soon as a later client had
// closed its session, and a forged incarnation of 2^63 would lock the shard forever. A ticket is
// refused only if MaxEnded sessions have ended since the shard issued it; the client then requests
// a new one. A forged ticket harms only the client that sends it.
type ended struct {
	// list is only appended to and cut at its front, because snapshots share it.
	list  []endedSession
	floor rowraft.Index
	last  map[rowraft.ClientID]rowraft.Incarnation // the highest incarnation in list of each client; never iterated
}

// endedSession is a session that is over. None of its client with its incarnation, or a lower one, is opened again.
type endedSession struct {
	Client      rowraft.ClientID
	Incarnation rowraft.Incarnation
	Index       rowraft.Index // of the entry that ended it
}

// add records that the session of (client, inc) ended at index at, the one being applied.
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
	e.list = append(e.list, endedSession{Client: client, Incarnation: inc, Index: at})
	e.last[client] = inc
}

// restore replaces e by the content of a snapshot.
func (e *ended) restore(from checkpoint.Ended) {
	e.list, e.floor = convert(from.List, func(s checkpoint.EndedSession) endedSession { return endedSession(s) }),
		from.Floor
	e.last = make(map[rowraft.ClientID]rowraft.Incarnation, len(e.list))
	for _, s := range e.list {
		e.last[s.Client] = max(e.last[s.Client], s.Incarnation)
	}
}

// refuse returns the error with which the shard refuses to open o, or nil. REQUIRES: o.Client has
// no session, or one of a lower incarnation.
func (e *ended) refuse(o *wire.Opening) error {
	switch last := e.last[o.Client]; {
	case last > o.Incarnation:
		return superseded(o.Client, o.Incarnation, last)
	case last == o.Incarnation:
		return noSession(o.Client, o.Incarnation, "it was closed or evicted")
	case o.Ticket < e.floor:
		return &rowraft.OverloadedError{
			What: fmt.Sprintf("client %x has a ticket of index %d, and more than %d sessions have ended since: request a "+
				"new ticket",
				o.Client[:4], o.Ticket, MaxEnded),
			RetryAfter: 10 * time.Millisecond,
		}
	}
	return nil
}

// mayOpen returns the error with which the shard refuses to open o at log time now, or nil.
// evict is the position of the session that must be evicted for it, -1 if none.
func (t *sessionTable) mayOpen(o *wire.Opening, now uint64) (evict int, err error) {
	if o.Incarnation == 0 {
		return -1, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"open a session of client %x: incarnation 0: want one that the scheduler issued, at least 1", o.Client[:4])
	}
	_, s := t.list.find(o.Client)
	switch {
	case s != nil && s.Incarnation > o.Incarnation:
		return -1, superseded(o.Client, o.Incarnation, s.Incarnation)
	case s != nil && s.Incarnation == o.Incarnation && expired(s, now):
		return -1, tooOld(s)
	case s != nil && s.Incarnation == o.Incarnation:
		return -1, nil
	}
	if err := t.ended.refuse(o); err != nil || s != nil {
		return -1, err
	}
	from, to, limit, owner := 0, len(t.list), MaxSessions, "the shard"
	if a, b := t.list.ofOwner(o.Client); b-a >= MaxOwnerSessions {
		from, to, limit, owner = a, b, MaxOwnerSessions, fmt.Sprintf("owner %x", o.Client[:8])
	}
	if to-from < limit {
		return -1, nil
	}
	if evict = t.list[from:to].idlest(now); evict < 0 {
		return -1, &rowraft.OverloadedError{
			What: fmt.Sprintf("%s has %d sessions, the limit, and all are in use: run fewer clients, or close "+
				"finished ones", owner, limit),
			Limit: "sessions", RetryAfter: sessionRetry,
		}
	}
	return from + evict, nil
}

// open opens the session o at index at and log time now, and reports
// whether it evicted another session.
func (t *sessionTable) open(o *wire.Opening, at rowraft.Index, now uint64) (evicted bool, err error) {
	evict, err := t.mayOpen(o, now)
	if err != nil {
		return false, err
	}
	if evict >= 0 {
		t.end(evict, at)
	}
	fresh := &session{Client: o.Client, Incarnation: o.Incarnation, LastUsed: now}
	i, s := t.list.find(o.Client)
	switch {
	case s == nil:
		t.list = slices.Insert(t.list, i, fresh)
	case s.Incarnation < o.Incarnation:
		t.list[i] = fresh
	default: // a copy of the request that opened the session
		used := *s // a snapshot may share s
		used.LastUsed = now
		t.list[i] = &used
	}
	return evict >= 0, nil
}

// close ends the session of (client, inc), if there is one.
func (t *sessionTable) close(client rowraft.ClientID, inc rowraft.Incarnation, at rowraft.Index) {
	if i, s := t.list.find(client); s != nil && s.Incarnation == inc {
		t.end(i, at)
	}
}

func (t *sessionTable) end(i int, at rowraft.Index) {
	s := t.list[i]
	t.list = slices.Delete(t.list, i, i+1)
	t.ended.add(s.Client, s.Incarnation, at)
}

// idlest returns the position of the session to evict, -1 if all are in use: in the lowest class,
// the least recently used session; of several, the one with the lowest client.
func (t sessions) idlest(now uint64) int {
	victim, best := -1, inUse
	for i, s := range t {
		// Skip early the sessions that cannot come before the victim: a full shard
		// looks at all sessions for each new one.
		if victim >= 0 && s.LastUsed >= t[victim].LastUsed && (best <= isUnused || best == isIdle && !unused(s)) {
			continue
		}
		if c := evictionClass(s, now); c < best || c == best && c < inUse && s.LastUsed < t[victim].LastUsed {
			victim, best = i, c
		}
	}
	return victim
}

// class ranks sessions for eviction; a lower class is evicted first.
type class uint8

const (
	isExpired class = iota
	isUnused
	isIdle
	isSilent
	inUse // is not evicted
)

func evictionClass(s *session, now uint64) class {
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
func unused(s *session) bool { return s.Floor == 0 && s.Window == [Window / 64]uint64{} }

// hasGap reports whether s has a result for some number, but none for a lower number above the floor.
func hasGap(s *session) bool {
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

// check returns the session of a part, read-only, or CodeSessionExpired.
func (t *sessionTable) check(client rowraft.ClientID, inc rowraft.Incarnation, now uint64) (*session, error) {
	_, s := t.list.find(client)
	switch {
	case s == nil && t.ended.last[client] > inc:
		return nil, superseded(client, inc, t.ended.last[client])
	case s == nil:
		return nil, noSession(client, inc, "it was never opened in this shard, or it was closed, expired or evicted")
	case s.Incarnation > inc:
		return nil, superseded(client, inc, s.Incarnation)
	case s.Incarnation < inc:
		return nil, noSession(client, inc,
			fmt.Sprintf("it was not opened in this shard, which has incarnation %d", s.Incarnation))
	case expired(s, now):
		return nil, tooOld(s)
	}
	return s, nil
}

func expired(s *session, now uint64) bool {
	return now > s.LastUsed && now-s.LastUsed > uint64(SessionTTL)
}

func superseded(client rowraft.ClientID, inc, by rowraft.Incarnation) error {
	return rowraft.Errorf(rowraft.CodeSessionExpired, "client %x: incarnation %d was replaced by incarnation %d",
		client[:4], inc, by)
}

func noSession(client rowraft.ClientID, inc rowraft.Incarnation, why string) error {
	return &rowraft.SessionEndedError{What: fmt.Sprintf("client %x has no session of incarnation %d: %s",
		client[:4], inc, why)}
}

func tooOld(s *session) error {
	return noSession(s.Client, s.Incarnation, fmt.Sprintf("it expired, because it was not used for %v", SessionTTL))
}

// lookup returns the recorded result of the number of p. known means that the number was applied
// or is below the floor. An error is one of three: the recorded refusal of this number, with known;
// CodeInvalidArgument for a number that no correct client sends; CodeOverloaded for a number too
// far above the floor. The last two are not recorded.
func lookup(s *session, p *wire.Part) (known bool, err error) {
	floor := max(s.Floor, p.Floor)
	switch {
	case p.Seq == 0:
		return false, rowraft.Errorf(rowraft.CodeInvalidArgument, "sequence number 0: want at least 1")
	case p.Floor >= p.Seq:
		return false, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"sequence number %d is not above the client's own floor %d", p.Seq, p.Floor)
	case p.Seq <= s.Floor:
		return true, nil
	case p.Seq-floor > Window:
		return false, &rowraft.OverloadedError{
			What:       fmt.Sprintf("more than %d pushes of one session wait for their result: send fewer at a time", Window),
			Limit:      "window",
			RetryAfter: 10 * time.Millisecond,
		}
	case p.Seq-s.Floor > Window || s.Window[p.Seq%Window/64]>>(p.Seq%64)&1 == 0:
		return false, nil
	}
	if i, ok := slices.BinarySearchFunc(s.Refused, p.Seq, compareRefusal); ok {
		return true, rowraft.Errorf(s.Refused[i].Code,
			"sequence number %d was refused when it first arrived (%s); nothing of it was applied",
			p.Seq, s.Refused[i].Code)
	}
	return true, nil
}

func compareRefusal(r refusal, n rowraft.Seq) int {
	switch {
	case r.Seq < n:
		return -1
	case r.Seq > n:
		return 1
	}
	return 0
}

// raiseFloor raises the floor of s to floor and forgets the results at and below it.
func raiseFloor(s *session, floor rowraft.Seq) {
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

// record records the result of n: err, or nil if n was applied.
// REQUIRES: lookup(n) returned false and no error, and raiseFloor has been called.
func record(s *session, n rowraft.Seq, err error) {
	s.Window[n%Window/64] |= 1 << (n % 64)
	if err == nil {
		return
	}
	i, _ := slices.BinarySearchFunc(s.Refused, n, compareRefusal)
	s.Refused = slices.Insert(s.Refused, i, refusal{Seq: n, Code: rowraft.CodeOf(err)})
}

// share returns e for a snapshot.
func (e *ended) share() ended { return ended{list: e.list, floor: e.floor} }

// share returns all sessions for a snapshot. From now on a change of a session copies it
// first.
func (t *sessionTable) share() []*session {
	t.private = make(map[*session]bool)
	return slices.Clone(t.list)
}

// writable returns s for a change. If a snapshot shares s, it first replaces s by a copy.
func (t *sessionTable) writable(s *session) *session {
	if t.private == nil || t.private[s] {
		return s
	}
	c := *s
	c.Refused = slices.Clone(s.Refused)
	at, _ := t.list.find(s.Client)
	t.list[at] = &c
	t.private[&c] = true
	return &c
}
