package timers

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// model is a group whose replicas exchange nothing but their reports.
type model struct {
	t        *testing.T
	now      time.Duration
	leader   int // -1: none
	replicas []*modelReplica
	handed   int // transfers of the leadership
}

type modelReplica struct {
	id          raft.ServerID
	dead        bool
	need        time.Duration
	mine        Report
	heard       map[int]heardAt
	down        time.Duration // until then it restarts
	permitted   raft.ServerID
	permittedAt time.Duration
	moved       time.Duration
	restarts    int
}

type heardAt struct {
	Report
	at time.Duration
}

func newModel(t *testing.T, n int, heartbeat time.Duration) *model {
	m := &model{t: t, now: time.Hour}
	for i := range n {
		m.replicas = append(m.replicas, &modelReplica{
			id: raft.ServerID(fmt.Sprint(i)), need: heartbeat, mine: Report{Want: heartbeat, Now: heartbeat, Started: heartbeat},
			heard: map[int]heardAt{},
		})
	}
	return m
}

const modelTick = 250 * time.Millisecond

func (m *model) up(i int) bool { return !m.replicas[i].dead && m.replicas[i].down <= m.now }

// tell sends the report of from to to.
func (m *model) tell(from, to int) {
	if !m.up(from) || !m.up(to) {
		return
	}
	said := m.replicas[from].mine
	said.Restart = from == m.leader && m.replicas[from].permitted == m.replicas[to].id
	m.replicas[to].heard[from] = heardAt{said, m.now}
}

func (m *model) view(i int) View {
	r := m.replicas[i]
	v := View{
		Need: r.need, Now: r.mine.Now, Started: r.mine.Started, Lease: r.mine.Started * 4 / 5, Leads: i == m.leader,
		voter: true, voters: len(m.replicas), permitted: r.permitted, permittedFor: m.now - r.permittedAt,
		sinceMove: m.now - r.moved,
	}
	if m.leader >= 0 {
		v.Leader = m.replicas[m.leader].id
	}
	for j, other := range m.replicas {
		if h, ok := r.heard[j]; ok {
			v.members = append(v.members, member{other.id, true, h.Report, m.now - h.at})
		}
	}
	return v
}

// tick lets a moment pass, and checks what must hold at every one.
func (m *model) tick() {
	m.now += modelTick
	for i := range m.replicas {
		for j := range m.replicas {
			if i != j && (m.leader < 0 || i == m.leader || j == m.leader) {
				m.tell(i, j)
			}
		}
	}
	for i, r := range m.replicas {
		if !m.up(i) {
			continue
		}
		v := m.view(i)
		s := v.Decide()
		r.mine.Want, r.mine.Now = s.want, s.Heartbeat
		if s.permitted != r.permitted {
			r.permitted, r.permittedAt = s.permitted, m.now
		}
		switch {
		case s.Restart && i == m.leader:
			m.t.Fatalf("%v: the leader restarts", m.now)
		case s.Restart:
			r.moved, r.mine.Started, r.down = m.now, s.group, m.now+time.Second
			r.mine.Now = max(s.group, s.Heartbeat)
			r.restarts++
		case s.Transfer && i == m.leader:
			r.moved = m.now
			m.leader = (i + 1) % len(m.replicas)
			for m.replicas[m.leader].dead {
				m.leader = (m.leader + 1) % len(m.replicas)
			}
			m.handed++
		}
	}
	for i, r := range m.replicas {
		if r.mine.Now < r.mine.Started*4/5 {
			m.t.Fatalf("%v: replica %d has a heartbeat of %v below its lease of %v", m.now, i, r.mine.Now, r.mine.Started*4/5)
		}
	}
}

// ordered fails when a follower that is up has a shorter heartbeat than the leader, or no majority is up.
func (m *model) ordered() {
	away := 0
	for i, r := range m.replicas {
		if !m.up(i) {
			away++
		}
		if lead := m.replicas[m.leader]; i != m.leader && m.up(i) && r.mine.Now < lead.mine.Now {
			m.t.Fatalf("%v: the follower %d has a heartbeat of %v, the leader %d of %v", m.now, i, r.mine.Now, m.leader,
				lead.mine.Now)
		}
	}
	if away > (len(m.replicas)-1)/2 {
		m.t.Fatalf("%v: %d of %d replicas are away", m.now, away, len(m.replicas))
	}
}

// settled reports whether all replicas have the heartbeat, and its lease.
func (m *model) settled(heartbeat time.Duration) bool {
	for i, r := range m.replicas {
		if !r.dead && (!m.up(i) || r.mine.Now != heartbeat || r.mine.Started != heartbeat) {
			return false
		}
	}
	return true
}

func (m *model) settle(heartbeat, limit time.Duration) (took time.Duration) {
	m.t.Helper()
	begun := m.now
	for !m.settled(heartbeat) {
		if m.tick(); m.leader >= 0 {
			m.ordered()
		}
		if m.now-begun > limit {
			for i, r := range m.replicas {
				m.t.Logf("replica %d (leader %d): %+v", i, m.leader, r)
			}
			m.t.Fatalf("the group has not the timers of %v within %v", heartbeat, limit)
		}
	}
	return m.now - begun
}

// Timers rise on the followers first and fall on them last; the lease follows by restarts, one replica after
// the other, the leader last.
func TestTimersChangeInOrder(t *testing.T) {
	const fast, slow = 250 * time.Millisecond, 2 * time.Second
	for _, who := range []int{0, 1} { // the leader's disk, or a follower's
		m := newModel(t, 3, fast)
		for range 20 {
			m.tick()
		}
		m.replicas[who].need = slow
		t.Logf("replica %d is slow: %v until all have the timers", who, m.settle(slow, time.Minute))
		if m.handed != 1 {
			t.Errorf("the lead changed hands %d times, want once", m.handed)
		}
		m.replicas[who].need = fast
		t.Logf("replica %d is fast again: %v", who, m.settle(fast, 2*time.Minute))
		for i, r := range m.replicas {
			if r.restarts != 2 {
				t.Errorf("replica %d restarted %d times, want once for each change", i, r.restarts)
			}
		}
		if m.handed != 2 {
			t.Errorf("the lead changed hands %d times, want twice", m.handed)
		}
	}
}

// Without a leader the replicas follow their own disks, and the reports in votes of others.
func TestTimersRiseWithoutALeader(t *testing.T) {
	const fast, slow = 250 * time.Millisecond, time.Second
	m := newModel(t, 3, fast)
	m.leader = -1
	m.replicas[1].need, m.replicas[2].need = slow, slow
	if took := m.settle(slow, 10*time.Second); took > 3*time.Second {
		t.Errorf("took %v, want no order of restarts without a leader", took)
	}
}

// With a voter away no other one restarts, so the leases wait until it is back. The heartbeats do not.
func TestNoRestartForTimersTakesTheMajority(t *testing.T) {
	const fast, slow = 250 * time.Millisecond, time.Second
	m := newModel(t, 3, fast)
	m.replicas[2].dead = true
	m.replicas[0].need = slow
	for range 200 {
		m.tick()
		m.ordered()
	}
	if r := m.replicas[1]; r.restarts != 0 || r.mine.Now != slow || m.replicas[0].mine.Now != slow {
		t.Fatalf("leader %+v, follower %+v: want the heartbeat %v and no restart", m.replicas[0].mine, r.mine, slow)
	}
	m.replicas[2].dead = false
	m.settle(slow, time.Minute)
}

// The timers become equal after any sequence of changes.
func TestTimersSettleWhateverFails(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m := newModel(t, 3+2*rng.IntN(2), 250*time.Millisecond)
		for range 400 {
			switch r := m.replicas[rng.IntN(len(m.replicas))]; rng.IntN(20) {
			case 0:
				r.need = 250 * time.Millisecond << rng.IntN(5)
			case 1: // an election
				m.leader = rng.IntN(len(m.replicas))
			}
			if m.leader >= 0 && !m.up(m.leader) {
				m.leader = -1
			}
			m.tick()
			if m.leader < 0 && rng.IntN(4) == 0 {
				for i := range m.replicas {
					if m.up(i) {
						m.leader = i
					}
				}
			}
		}
		group := time.Duration(0)
		for _, r := range m.replicas {
			group = max(group, r.need)
		}
		if m.leader < 0 {
			m.leader = 0
		}
		m.settleAnyhow(group, 5*time.Minute)
	}
}

func (m *model) settleAnyhow(heartbeat, limit time.Duration) {
	m.t.Helper()
	for begun := m.now; !m.settled(heartbeat); m.tick() {
		if m.now-begun > limit {
			for i, r := range m.replicas {
				m.t.Logf("replica %d (leader %d): %+v", i, m.leader, r)
			}
			m.t.Fatalf("the group has not the timers of %v within %v", heartbeat, limit)
		}
	}
}
