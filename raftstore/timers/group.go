package timers

import (
	"cmp"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// reportCounts is how long the last report of a member counts.
	reportCounts = 30 * time.Second
	// answersFor is the age of a member's last report up to which the leader relies on the member.
	answersFor = 4 * time.Second
	// Pause is the pause between two restarts of a replica for its timers and between two attempts to transfer the
	// leadership for them. It is also the time that a follower has to restart before the leader permits another one.
	Pause = 10 * time.Second
)

// Group is what a replica knows of the timers of its group. The zero value knows nothing. Safe for concurrent use.
type Group struct {
	mu sync.Mutex // guards all fields below; not held across calls out of this package

	mine      Report        // sent in messages; zero until raft runs
	group     time.Duration // used by the group, as far as this replica knows; 0: unknown
	reports   map[raft.ServerID]*received
	permitted raft.ServerID // follower that this leader permits to restart; "": none
	since     time.Time     // when permitted was set
	moved     time.Time     // when this replica last restarted or tried to transfer the leadership for its timers
}

// received is the last report of a member and when it came.
type received struct {
	Report
	at time.Time
}

// Receive stores the encoded report of a member.
func (g *Group) Receive(id raft.ServerID, report []byte, now time.Time) {
	r, ok := ParseReport(report)
	if !ok || id == "" {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if old := g.reports[id]; old != nil {
		*old = received{r, now}
		return
	}
	if g.reports == nil {
		g.reports = map[raft.ServerID]*received{}
	}
	g.reports[id] = &received{r, now}
}

// ReportTo returns the report for a message to a member; "": to any.
func (g *Group) ReportTo(id raft.ServerID) Report {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.mine
	r.Restart = id != "" && id == g.permitted
	return r
}

// StartWith returns the heartbeat with which raft starts on a server that needs need, and the heartbeat whose lease
// raft gets.
func (g *Group) StartWith(need time.Duration) (heartbeat, started time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	started = max(need, g.group)
	return max(started, g.mine.Now), started
}

// Started records the timers that raft was started with. Until the first decision the replica reports these as needed.
func (g *Group) Started(heartbeat, started time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mine = Report{Want: cmp.Or(g.mine.Want, started), Now: heartbeat, Started: started}
}

// Complete adds to v what the replica self knows of the members of its group.
func (g *Group) Complete(v *View, self raft.ServerID, servers []raft.Server, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, srv := range servers {
		voter := srv.Suffrage == raft.Voter
		if voter {
			v.voters++
		}
		if srv.ID == self {
			v.voter = voter
			continue
		}
		if r, ok := g.reports[srv.ID]; ok {
			v.members = append(v.members, member{srv.ID, voter, r.Report, now.Sub(r.at)})
		}
	}
	v.permitted, v.permittedFor = g.permitted, now.Sub(g.since)
	v.sinceMove = now.Sub(g.moved)
}

// Applied records that raft uses the decision d on v, and that the caller executes the rest of d.
func (g *Group) Applied(v *View, d *Decision, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mine, g.group = Report{Want: d.want, Now: d.Heartbeat, Started: v.Started}, d.group
	if d.permitted != g.permitted {
		g.permitted, g.since = d.permitted, now
	}
	if d.Restart || d.Transfer {
		g.moved = now
	}
}

// NotMoved makes the next decision repeat a restart or transfer that did not happen.
func (g *Group) NotMoved() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.moved = time.Time{}
}
