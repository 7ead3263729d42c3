package turns

import (
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Flags are what one replica says of snapshots in each message (docs/formats/peer.md).
type Flags uint8

const (
	Due     Flags = 1 << iota // the sender needs a snapshot
	Writing                   // the sender writes one
	Turn                      // from a leader: the receiver may take one
)

// FlagsBytes is the size of Flags in a message.
const FlagsBytes = 1

// knownFlags has the flags that this version understands.
const knownFlags = Due | Writing | Turn

// Parse decodes flags. Unknown and missing ones are not set.
func Parse(b []byte) Flags {
	if len(b) == 0 {
		return 0
	}
	return Flags(b[0]) & knownFlags
}

// leaderWaits is how long a new leader waits until it has heard of the snapshots of all members, and a leader whose
// snapshot is due until it has heard of those that are due at the same moment.
const leaderWaits = time.Second

// counts is how long the last flags of a member count.
const counts = 4 * time.Second

// Group is what a replica knows of the snapshots of its group. The zero value knows nothing. Safe for concurrent use.
type Group struct {
	mu sync.Mutex // guards all fields below; not held across calls out of this package

	mine    Flags
	dueAt   time.Time // when Due was last set
	ledAt   time.Time // when this replica began to lead; zero: it does not
	members map[raft.ServerID]*member
	holder  raft.ServerID // the follower to which this leader has given the turn; "": none
}

// member has the last flags of a member and when they came.
type member struct {
	flags Flags
	at    time.Time
}

// Receive stores the flags of a member.
func (g *Group) Receive(id raft.ServerID, flags Flags, now time.Time) {
	if id == "" {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if m := g.members[id]; m != nil {
		*m = member{flags, now}
		return
	}
	if g.members == nil {
		g.members = map[raft.ServerID]*member{}
	}
	g.members[id] = &member{flags, now}
}

// FlagsTo returns the flags for a message to a member; "": to any.
func (g *Group) FlagsTo(id raft.ServerID) Flags {
	g.mu.Lock()
	defer g.mu.Unlock()
	if id != "" && id == g.holder {
		return g.mine | Turn
	}
	return g.mine
}

// SetWriting records whether this replica writes a snapshot.
func (g *Group) SetWriting(writing bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mine &^= Writing
	if writing {
		g.mine |= Writing
	}
}

// View is the group as one replica sees it.
type View struct {
	Self    raft.ServerID
	Leader  raft.ServerID   // "": unknown
	Members []raft.ServerID // with or without Self
	Grown   int64           // bytes of log that were applied since the last snapshot of this replica
	Every   int64           // bytes of log between two snapshots
	First   bool            // this replica has taken no snapshot yet
	Failed  bool            // the last one has failed, and it is too early for another one
}

// due reports whether the replica needs a snapshot. The first ones come after a part of the interval that differs
// between the replicas, the leader's after a whole one. The distance between them then stays.
func (v *View) due() bool {
	least := v.Every
	if v.First {
		place, n := v.place()
		least = v.Every * int64(place) / int64(max(n, 1))
	}
	return v.Grown > 0 && v.Grown >= least && !v.Failed
}

// place returns the place of the replica among the n members in the first round, from 1. The leader's is the last one,
// and so is that of a replica that is no member.
func (v *View) place() (place, n int) {
	n, place = len(v.Members), 1
	for _, id := range v.Members {
		if id == v.Leader {
			continue
		}
		if id == v.Self {
			return place, n
		}
		place++
	}
	return n, n
}

// bound sets how long a replica waits for its turn: until it has applied 1/bound more log than the interval.
const bound = 2

// May reports whether the replica takes a snapshot now: one is due, and it has the turn or has waited for it too long.
// A leader also passes the turn on, so each replica calls May regularly.
func (g *Group) May(v *View, now time.Time) bool {
	due := v.due()
	return g.hasTurn(v, due, now) || due && v.Grown >= v.Every+v.Every/bound
}

func (g *Group) hasTurn(v *View, due bool, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !due {
		g.mine &^= Due
	} else if g.mine&Due == 0 {
		g.mine |= Due
		g.dueAt = now
	}
	if v.Leader != v.Self {
		g.holder, g.ledAt = "", time.Time{}
		return due && g.lastLocked(v.Leader, now)&Turn != 0
	}
	if g.ledAt.IsZero() {
		g.ledAt = now
	}
	if g.lastLocked(g.holder, now)&(Due|Writing) == 0 || !slices.Contains(v.Members, g.holder) {
		g.holder = ""
	}
	if len(v.Members) <= 1 {
		return due
	}
	if g.holder != "" || g.mine&Writing != 0 || now.Sub(g.ledAt) < leaderWaits {
		return false
	}
	for _, id := range v.Members { // one that did not wait for its turn, or has it of an earlier leader
		if id != v.Self && g.lastLocked(id, now)&Writing != 0 {
			return false
		}
	}
	for _, id := range v.Members {
		if id != v.Self && g.lastLocked(id, now)&Due != 0 {
			g.holder = id
			return false
		}
	}
	return due && now.Sub(g.dueAt) >= leaderWaits
}

// lastLocked returns the last flags of a member; 0 if it was not heard lately.
// REQUIRES: g.mu is held.
func (g *Group) lastLocked(id raft.ServerID, now time.Time) Flags {
	m := g.members[id]
	if m == nil || now.Sub(m.at) > counts {
		return 0
	}
	return m.flags
}
