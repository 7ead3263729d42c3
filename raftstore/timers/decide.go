package timers

import (
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// View is the input of a decision about the timers of a replica. Group.Complete sets the unexported fields.
type View struct {
	Need    time.Duration // needed by this server
	Now     time.Duration // in use by raft
	Started time.Duration // used to start raft
	Lease   time.Duration // lease of Started: raft accepts no heartbeat below it
	Leads   bool
	Leader  raft.ServerID // "": unknown

	voter        bool // this replica is one
	voters       int  // this replica included
	members      []member
	permitted    raft.ServerID // follower that may restart now; "": none
	permittedFor time.Duration // since permitted was set
	sinceMove    time.Duration // since this replica restarted or tried to transfer the leadership
}

// member is the last report of another member and its age.
type member struct {
	id    raft.ServerID
	voter bool
	Report
	age time.Duration
}

func (m *member) answers() bool { return m.age < answersFor }

// Decision is the decision about the timers of a replica.
type Decision struct {
	Heartbeat time.Duration // to use
	Restart   bool          // restart this replica in place
	Transfer  bool          // transfer the leadership

	group     time.Duration // used by the group, as far as this replica knows
	want      time.Duration // to report
	permitted raft.ServerID // follower that may restart; "": none
}

// Decide decides. It has no side effects.
func (v *View) Decide() Decision {
	d := Decision{want: v.Need}
	group := v.Need // used by the group, as far as this replica knows
	if leader := v.find(v.Leader); !v.Leads && leader != nil && leader.answers() {
		group = max(group, leader.Want)
		d.Heartbeat = max(group, leader.Now) // the leader decreases first
		d.Restart = leader.Restart && v.Started != group
	} else {
		for _, m := range v.members {
			if m.age < reportCounts {
				group = max(group, m.Want)
			}
		}
		d.Heartbeat = group
		d.Restart = !v.Leads && v.Leader == "" && v.voter && v.Started < group
	}
	d.group, d.Restart = group, d.Restart && v.sinceMove >= Pause
	if v.Leads {
		d.want = group
		if group > v.Now && !v.followersHave(group) {
			d.Heartbeat = v.Now
		}
		v.permit(group, &d)
	}
	d.Heartbeat = max(d.Heartbeat, v.Lease)
	return d
}

func (v *View) find(id raft.ServerID) *member {
	for i := range v.members {
		if v.members[i].id == id {
			return &v.members[i]
		}
	}
	return nil
}

// followersHave reports whether all members that answer use at least the heartbeat h.
func (v *View) followersHave(h time.Duration) bool {
	for _, m := range v.members {
		if m.answers() && m.Now < h {
			return false
		}
	}
	return true
}

// permit decides which follower may restart to get the lease of the group. It permits one follower at a time, and a
// voter only if the other voters are a majority. The leader is last: it transfers the leadership first.
func (v *View) permit(group time.Duration, d *Decision) {
	alive, successor := 1, false
	var waiting []raft.ServerID
	for _, m := range v.members {
		if !m.answers() {
			continue
		}
		if m.voter {
			alive++
		}
		if m.Started != group {
			waiting = append(waiting, m.id)
		} else if m.voter {
			successor = true
		}
	}
	if m := v.find(v.permitted); m != nil && m.Started != group && v.permittedFor < Pause {
		d.permitted = v.permitted // it is restarting, so it may not answer
		return
	}
	if len(waiting) > 0 {
		next := waiting[(slices.Index(waiting, v.permitted)+1)%len(waiting)]
		if !v.find(next).voter || alive-1 >= v.voters/2+1 {
			d.permitted = next
		}
		return
	}
	d.Transfer = successor && v.Started != group && v.sinceMove >= Pause
}
