package raftstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// One profile per group
//
// Each replica knows the heartbeat that its own server needs (Store.fitHeartbeat). The group takes the longest
// of them. Every message of a replica says what it needs, so a slow group agrees before it has a leader.
// The leader says what the group takes. When that rises, the followers take it first and the leader follows
// once all that answer have it; when it falls, the leader takes it first: a leader never sends heartbeats more
// rarely than its followers bear.
//
// Raft can change heartbeat and election timeout while it runs, but the leader's lease only when it
// starts again. So the leader lets one follower after the other restart in place, then hands over the lead and is
// let restart by its successor. While there is no leader, a replica restarts by itself.

const (
	// timersHeard is how long counts what a member said that it needs.
	timersHeard = 30 * time.Second
	// timersAnswer is how long ago a member must have answered that the leader counts on.
	timersAnswer = 4 * time.Second
	// timersPause is between two restarts of a replica for its timers, between two attempts to hand
	// over the lead for them, and how long a follower has to restart before another one may.
	timersPause = 10 * time.Second
)

// timers are what one replica says of its own in each message. Each is a heartbeat timeout; the lease belongs to it.
type timers struct {
	want    time.Duration // the replica needs; of a leader, what the group takes
	now     time.Duration // raft has
	started time.Duration // raft was started with: its lease is of that
	restart bool          // the leader lets the receiver restart
}

// timersBytes is the size of timers in a message (docs/formats/peer.md).
const timersBytes = 13

func (t timers) append(b []byte) []byte {
	for _, d := range []time.Duration{t.want, t.now, t.started} {
		b = binary.LittleEndian.AppendUint32(b, uint32(d.Microseconds()))
	}
	return append(b, bit(t.restart))
}

// readTimers returns false for what is none, as from a message of raft's own.
func readTimers(b []byte) (t timers, ok bool) {
	if len(b) != timersBytes || b[12] > 1 {
		return t, false
	}
	for i, d := range []*time.Duration{&t.want, &t.now, &t.started} {
		us := binary.LittleEndian.Uint32(b[4*i:])
		if *d = time.Duration(us) * time.Microsecond; *d <= 0 || *d > time.Minute {
			return t, false
		}
	}
	t.restart = b[12] == 1
	return t, true
}

// splitSender takes a sender's address apart: its node, the replica that the message is for, and its timers.
func splitSender(addr []byte) (node []byte, to raft.ServerID, said []byte) {
	node, rest, _ := bytes.Cut(addr, []byte{0})
	replica, said, _ := bytes.Cut(rest, []byte{0})
	return node, raft.ServerID(replica), said
}

// joinSender is the inverse of splitSender.
func joinSender(node []byte, to raft.ServerID, said timers) []byte {
	b := make([]byte, 0, len(node)+len(to)+2+timersBytes)
	b = append(append(b, node...), 0)
	return said.append(append(append(b, to...), 0))
}

// groupTimers is what a replica knows of the timers of its group.
type groupTimers struct {
	mu    sync.Mutex
	mine  timers        // said in messages; zero until raft runs
	group time.Duration // what the group takes, as far as this replica knows; 0: unknown
	heard map[raft.ServerID]heardTimers
	let   raft.ServerID // may restart, by this leader's word; "" nobody
	since time.Time     // let was set
	moved time.Time     // this replica restarted, or tried to hand over, for its timers
}

type heardTimers struct {
	timers
	at time.Time
}

// hear notes what a member said.
func (g *groupTimers) hear(id raft.ServerID, said []byte, now time.Time) {
	t, ok := readTimers(said)
	if !ok || id == "" {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.heard == nil {
		g.heard = map[raft.ServerID]heardTimers{}
	}
	g.heard[id] = heardTimers{t, now}
}

// say returns what a message to a member says.
func (g *groupTimers) say(to raft.ServerID) timers {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.mine
	t.restart = to != "" && to == g.let
	return t
}

// start notes what raft was started with. Until the first step the replica needs that.
func (g *groupTimers) start(heartbeat, started time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mine = timers{want: cmp.Or(g.mine.want, started), now: heartbeat, started: started}
}

// timersView is what the timers of a replica are decided by.
type timersView struct {
	need      time.Duration // of this server
	now       time.Duration // raft has
	started   time.Duration // raft was started with
	lease     time.Duration // that goes with started: raft takes no heartbeat below it
	leads     bool
	leader    raft.ServerID // "": unknown
	voter     bool
	voters    int // this replica included
	members   []memberTimers
	let       raft.ServerID // the member that may restart at present
	letSince  time.Duration // for so long
	lastMoved time.Duration // since this replica restarted or tried to hand over
}

// memberTimers is what another member said, and how long ago.
type memberTimers struct {
	id    raft.ServerID
	voter bool
	timers
	ago time.Duration
}

func (m *memberTimers) answers() bool { return m.ago < timersAnswer }

// timersStep is what a replica does about its timers.
type timersStep struct {
	group           time.Duration // what the group takes, as far as this replica knows
	want, heartbeat time.Duration // to say, and to have
	let             raft.ServerID // the follower that may restart; "" none
	restart         bool          // this replica, in place
	handOver        bool          // the lead
}

// step decides. It has no effect by itself.
func (v *timersView) step() timersStep {
	s := timersStep{want: v.need}
	group := v.need // what the group takes, as far as this replica knows
	if leader := v.find(v.leader); !v.leads && leader != nil && leader.answers() {
		group = max(group, leader.want)
		s.heartbeat = max(group, leader.now) // the leader's fall first
		s.restart = leader.restart && v.started != group
	} else {
		for _, m := range v.members {
			if m.ago < timersHeard {
				group = max(group, m.want)
			}
		}
		s.heartbeat = group
		s.restart = !v.leads && v.leader == "" && v.voter && v.started < group
	}
	s.group, s.restart = group, s.restart && v.lastMoved >= timersPause
	if v.leads {
		s.want = group
		if group > v.now && !v.followersHave(group) {
			s.heartbeat = v.now
		}
		v.lead(group, &s)
	}
	s.heartbeat = max(s.heartbeat, v.lease)
	return s
}

func (v *timersView) find(id raft.ServerID) *memberTimers {
	for i := range v.members {
		if v.members[i].id == id {
			return &v.members[i]
		}
	}
	return nil
}

// followersHave reports whether all members that answer have at least the heartbeat h.
func (v *timersView) followersHave(h time.Duration) bool {
	for _, m := range v.members {
		if m.answers() && m.now < h {
			return false
		}
	}
	return true
}

// lead decides which follower may restart to get the lease of the group. One at a time may, and a voter only
// while a majority goes on without it. The leader is the last: it hands over the lead first.
func (v *timersView) lead(group time.Duration, s *timersStep) {
	alive, successor := 1, false
	var waiting []raft.ServerID
	for _, m := range v.members {
		if !m.answers() {
			continue
		}
		if m.voter {
			alive++
		}
		if m.started != group {
			waiting = append(waiting, m.id)
		} else if m.voter {
			successor = true
		}
	}
	if m := v.find(v.let); m != nil && m.started != group && v.letSince < timersPause {
		s.let = v.let // it restarts, and may not answer meanwhile
		return
	}
	if len(waiting) > 0 {
		next := waiting[(slices.Index(waiting, v.let)+1)%len(waiting)]
		if !v.find(next).voter || alive-1 >= v.voters/2+1 {
			s.let = next
		}
		return
	}
	s.handOver = successor && v.started != group && v.lastMoved >= timersPause
}

// startTimers returns the heartbeat that raft starts with, and the one that its lease is to belong to.
func (g *Group) startTimers() (heartbeat, started time.Duration) {
	g.timers.mu.Lock()
	defer g.timers.mu.Unlock()
	started = max(g.store.neededHeartbeat(), g.timers.group)
	return max(started, g.timers.mine.now), started
}

// fitTimers gives the replica the timers that its group takes. The supervisor calls it at each tick.
func (g *Group) fitTimers(n *instance) {
	now := time.Now()
	v := g.timersView(n, now)
	s := v.step()
	n.heartbeat.Store(int64(s.heartbeat))
	if s.heartbeat != v.now {
		g.log.Info("Raft timers of the group", "heartbeat", s.heartbeat, "before", v.now, "started", v.started)
		if err := n.change(func(rc *raft.ReloadableConfig) { rc.HeartbeatTimeout, rc.ElectionTimeout = s.heartbeat, s.heartbeat }); err != nil {
			g.fail(err)
			return
		}
	}
	g.timers.mu.Lock()
	g.timers.mine, g.timers.group = timers{want: s.want, now: s.heartbeat, started: v.started}, s.group
	if s.let != g.timers.let {
		g.timers.let, g.timers.since = s.let, now
	}
	if s.restart || s.handOver {
		g.timers.moved = now
	}
	g.timers.mu.Unlock()
	switch {
	case s.restart:
		g.restartForTimers(n, v.leader != "")
	case s.handOver:
		g.handOverForTimers(n)
	}
}

func (g *Group) timersView(n *instance, now time.Time) timersView {
	rc := n.raft.ReloadableConfig()
	v := timersView{
		need: g.store.neededHeartbeat(), now: rc.HeartbeatTimeout, started: n.started, lease: n.lease,
		leads: n.raft.State() == raft.Leader,
	}
	_, v.leader = n.raft.LeaderWithID()
	servers := n.raft.GetConfiguration().Configuration().Servers
	g.timers.mu.Lock()
	defer g.timers.mu.Unlock()
	for _, srv := range servers {
		voter := srv.Suffrage == raft.Voter
		if voter {
			v.voters++
		}
		if srv.ID == raft.ServerID(g.cfg.Replica) {
			v.voter = voter
			continue
		}
		if t, ok := g.timers.heard[srv.ID]; ok {
			v.members = append(v.members, memberTimers{srv.ID, voter, t.timers, now.Sub(t.at)})
		}
	}
	v.let, v.letSince = g.timers.let, now.Sub(g.timers.since)
	v.lastMoved = now.Sub(g.timers.moved)
	return v
}

// restartForTimers restarts raft in place to change its lease. While the group has a leader, one group of the store
// does at a time. The supervisor calls it.
func (g *Group) restartForTimers(n *instance, paced bool) {
	if g.snapBusy.Load() || n.raft.State() == raft.Leader {
		g.timersLater()
		return
	}
	if paced {
		select {
		case g.store.restarting <- struct{}{}:
			defer func() { <-g.store.restarting }()
		default:
			g.timersLater()
			return
		}
	}
	g.restart(slog.LevelInfo, "its lease changes with the timers of the group")
}

// timersLater has the next tick try again.
func (g *Group) timersLater() {
	g.timers.mu.Lock()
	defer g.timers.mu.Unlock()
	g.timers.moved = time.Time{}
}

// handOverForTimers hands over the lead to a member that has the lease of the group.
func (g *Group) handOverForTimers(n *instance) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.stopping {
		return
	}
	n.watcher.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timersPause)
		defer cancel()
		if err := g.TransferLeadership(ctx, ""); err != nil {
			g.log.Info("the lead stays here although other timers need a new lease", "err", err)
		}
	})
}
