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

// How a group agrees on its timers
//
// Each replica knows the heartbeat timeout that its own server needs (Store.fitHeartbeat). The group uses the longest
// one. Every message of a replica contains what its server needs, so a group on slow disks agrees before it has a
// leader. The leader's messages contain what the group uses. An increase is applied by the followers first, and by the
// leader after all followers that answer have it. A decrease is applied by the leader first. So a leader never sends
// heartbeats less often than its followers expect.
//
// Raft can change the heartbeat and election timeouts while it runs, but it reads the leader's lease only when it
// starts. So the leader permits one follower after the other to restart in place, then transfers the leadership, and
// its successor permits it to restart. While there is no leader, a replica restarts without permission.

const (
	// timersHeard is how long the last report of a member counts.
	timersHeard = 30 * time.Second
	// timersAnswer is the age of a member's last answer up to which the leader relies on the member.
	timersAnswer = 4 * time.Second
	// timersPause is the pause between two restarts of a replica for its timers and between two attempts to transfer
	// the leadership for them. It is also the time that a follower has to restart before the leader permits another
	// one.
	timersPause = 10 * time.Second
)

// timers is the report of one replica in each message. Each duration is a heartbeat timeout; the lease follows from it.
type timers struct {
	want    time.Duration // needed by the replica; from a leader, used by the group
	now     time.Duration // in use by raft
	started time.Duration // used to start raft: raft's lease is that of this timeout
	restart bool          // from a leader: the receiver may restart
}

// timersBytes is the size of timers in a message (docs/formats/peer.md).
const timersBytes = 13

func (t timers) append(b []byte) []byte {
	for _, d := range []time.Duration{t.want, t.now, t.started} {
		b = binary.LittleEndian.AppendUint32(b, uint32(d.Microseconds()))
	}
	return append(b, bit(t.restart))
}

// readTimers decodes a report; false if b is none, as in raft's own messages.
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

// splitSender splits a sender's address into its node, the replica that the message is for, and the encoded timers.
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
	mine  timers        // sent in messages; zero until raft runs
	group time.Duration // used by the group, as far as this replica knows; 0: unknown
	heard map[raft.ServerID]heardTimers
	let   raft.ServerID // follower that this leader permits to restart; "": none
	since time.Time     // when let was set
	moved time.Time     // when this replica last restarted or tried to transfer the leadership for its timers
}

type heardTimers struct {
	timers
	at time.Time
}

// hear stores the report of a member.
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

// say returns the report for a message to a member.
func (g *groupTimers) say(to raft.ServerID) timers {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.mine
	t.restart = to != "" && to == g.let
	return t
}

// start records the timers that raft was started with. Until the first step the replica reports these as needed.
func (g *groupTimers) start(heartbeat, started time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mine = timers{want: cmp.Or(g.mine.want, started), now: heartbeat, started: started}
}

// timersView is the input of a decision about the timers of a replica.
type timersView struct {
	need      time.Duration // needed by this server
	now       time.Duration // in use by raft
	started   time.Duration // used to start raft
	lease     time.Duration // lease of started: raft accepts no heartbeat below it
	leads     bool
	leader    raft.ServerID // "": unknown
	voter     bool
	voters    int // this replica included
	members   []memberTimers
	let       raft.ServerID // follower that may restart now
	letSince  time.Duration // since let was set
	lastMoved time.Duration // since this replica restarted or tried to transfer the leadership
}

// memberTimers is the last report of another member and its age.
type memberTimers struct {
	id    raft.ServerID
	voter bool
	timers
	ago time.Duration
}

func (m *memberTimers) answers() bool { return m.ago < timersAnswer }

// timersStep is the decision about the timers of a replica.
type timersStep struct {
	group           time.Duration // used by the group, as far as this replica knows
	want, heartbeat time.Duration // to report, and to use
	let             raft.ServerID // follower that may restart; "": none
	restart         bool          // restart this replica in place
	handOver        bool          // transfer the leadership
}

// step decides. It has no side effects.
func (v *timersView) step() timersStep {
	s := timersStep{want: v.need}
	group := v.need // used by the group, as far as this replica knows
	if leader := v.find(v.leader); !v.leads && leader != nil && leader.answers() {
		group = max(group, leader.want)
		s.heartbeat = max(group, leader.now) // the leader decreases first
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

// followersHave reports whether all members that answer use at least the heartbeat h.
func (v *timersView) followersHave(h time.Duration) bool {
	for _, m := range v.members {
		if m.answers() && m.now < h {
			return false
		}
	}
	return true
}

// lead decides which follower may restart to get the lease of the group. It permits one follower at a time, and a voter
// only if the other voters are a majority. The leader is last: it transfers the leadership first.
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
		s.let = v.let // it is restarting, so it may not answer
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

// startTimers returns the heartbeat with which raft starts, and the heartbeat whose lease raft gets.
func (g *Group) startTimers() (heartbeat, started time.Duration) {
	g.timers.mu.Lock()
	defer g.timers.mu.Unlock()
	started = max(g.store.neededHeartbeat(), g.timers.group)
	return max(started, g.timers.mine.now), started
}

// fitTimers applies the timers of the group. The supervisor calls it at each tick.
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

// restartForTimers restarts raft in place to change its lease. While the group has a leader, only one group of the
// store at a time does this. Only the supervisor calls it.
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

// timersLater makes the next tick try again.
func (g *Group) timersLater() {
	g.timers.mu.Lock()
	defer g.timers.mu.Unlock()
	g.timers.moved = time.Time{}
}

// handOverForTimers transfers the leadership to a member that has the lease of the group.
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
