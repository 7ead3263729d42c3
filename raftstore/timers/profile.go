package timers

import (
	"time"

	"github.com/rowraft/rowraft"
)

// Profile is a set of Raft timers.
type Profile struct {
	Heartbeat   time.Duration // also the election timeout
	LeaderLease time.Duration // how long a leader without answers of a majority continues to lead
	Commit      time.Duration // bounds how stale an idle follower is
}

// The measured profiles, by the number of replicas on a node.
var (
	// ≤ 24, on cores of their own
	Fast    = Profile{250 * time.Millisecond, 200 * time.Millisecond, 10 * time.Millisecond}
	Default = Profile{500 * time.Millisecond, 400 * time.Millisecond, 20 * time.Millisecond}   // ≤ 100
	Dense   = Profile{1000 * time.Millisecond, 800 * time.Millisecond, 200 * time.Millisecond} // above
)

// Validate returns CodeInvalidArgument for timers that raft cannot use.
func (p *Profile) Validate() error {
	if p.LeaderLease > p.Heartbeat || p.Heartbeat < 10*time.Millisecond || p.Commit < time.Millisecond {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "timers with heartbeat %v, leader lease %v and commit %v: want "+
			"heartbeat ≥ 10ms, lease ≤ heartbeat, commit ≥ 1ms",
			p.Heartbeat, p.LeaderLease, p.Commit)
	}
	return nil
}

// Stretched returns p with another heartbeat and a lease in proportion.
func (p Profile) Stretched(heartbeat time.Duration) Profile {
	p.LeaderLease = time.Duration(float64(p.LeaderLease) * (float64(heartbeat) / float64(p.Heartbeat)))
	p.Heartbeat = heartbeat
	return p
}

// slowestHeartbeat bounds the heartbeat of a slow disk: 16 times that of Fast, for writes of 800 ms. A slower disk is
// useless.
const slowestHeartbeat = 4 * time.Second

// atLeast returns the heartbeat of p, doubled until it is at least d, but at most slowestHeartbeat.
func (p *Profile) atLeast(d time.Duration) time.Duration {
	h := p.Heartbeat
	for h < d && 2*h <= slowestHeartbeat {
		h *= 2
	}
	return h
}

// nextHeartbeat returns the heartbeat for a server that uses now and needs least. It increases at once. It decreases
// when least is a quarter below the next step.
func (p *Profile) nextHeartbeat(now, least time.Duration) time.Duration {
	if up := p.atLeast(least); up > now {
		return up
	}
	return min(max(now, p.Heartbeat), p.atLeast(least+least/3))
}
