package turns

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// model is a group of replicas that apply the same log at the same rate. A snapshot takes a number of steps.
type model struct {
	t        *testing.T
	now      time.Time
	leader   int // -1: none
	replicas []*replica
	every    int64
	grows    int64 // bytes of log in a step
	takes    int   // steps of a snapshot
	order    []int // who began a snapshot
	together int   // steps in which more than one replica wrote
	longest  int64 // most log between two snapshots of one replica
}

type replica struct {
	Group
	id    raft.ServerID
	since int64 // log since the begin of the last snapshot, which counts from its end on
	begun int64 // log since the begin of the running one
	left  int   // steps of the running snapshot; 0: none
	taken int
	first bool
	dead  bool // it neither sends nor writes
	stuck bool // it sends, and takes no snapshot
}

const step = 250 * time.Millisecond // a tick, and the delay of messages

func newModel(t *testing.T, n int, every, grows int64, takes int) *model {
	m := &model{t: t, now: time.Now(), every: every, grows: grows, takes: takes}
	for i := range n {
		m.replicas = append(m.replicas, &replica{id: raft.ServerID(fmt.Sprint("r", i)), first: true})
	}
	return m
}

func (m *model) view(r *replica) View {
	v := View{Self: r.id, Grown: r.since, Every: m.every, First: r.first}
	for i, o := range m.replicas {
		v.Members = append(v.Members, o.id)
		if i == m.leader {
			v.Leader = o.id
		}
	}
	return v
}

func (m *model) step() {
	m.now = m.now.Add(step)
	writing := 0
	for i, r := range m.replicas {
		r.since += m.grows
		r.begun += m.grows
		if r.dead {
			continue
		}
		if r.left > 0 {
			writing++
			if r.left--; r.left == 0 {
				r.since, r.first = r.begun, false
				r.taken++
				r.SetWriting(false)
			}
			continue
		}
		v := m.view(r)
		if r.May(&v, m.now) && !r.stuck {
			m.order = append(m.order, i)
			m.longest = max(m.longest, r.since)
			r.left, r.begun = m.takes, 0
			r.SetWriting(true)
		}
	}
	if writing > 1 {
		m.together++
	}
	if m.leader < 0 || m.replicas[m.leader].dead {
		return
	}
	l := m.replicas[m.leader]
	for _, r := range m.replicas { // a heartbeat and its answer
		if r == l || r.dead {
			continue
		}
		r.Receive(l.id, l.FlagsTo(r.id), m.now)
		l.Receive(r.id, r.FlagsTo(""), m.now)
	}
}

// Under a steady load the replicas never write at the same time, from the first snapshot on, and none waits long.
func TestReplicasTakeTurns(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5} {
		for _, grows := range []int64{1, 3, 10} {
			const every = 1000
			takes := int(every / grows / int64(n+1)) // as yieldShare for three
			m := newModel(t, n, every, grows, takes)
			m.leader = n / 2
			for range 20 * every / grows {
				m.step()
			}
			if m.together > 0 {
				t.Errorf("%d replicas, %d bytes a step: more than one wrote in %d steps", n, grows, m.together)
			}
			if m.longest > every*5/4 {
				t.Errorf("%d replicas, %d bytes a step: %d bytes of log between two snapshots, want about %d", n, grows,
					m.longest, every)
			}
			for i, r := range m.replicas {
				if r.taken < 15 {
					t.Errorf("%d replicas, %d bytes a step: replica %d took %d snapshots of 20", n, grows, i, r.taken)
				}
			}
		}
	}
}

// If all need a snapshot at the same moment, the leader's comes last. Then none has to wait again.
func TestTheLeaderIsLast(t *testing.T) {
	for leader := range 3 {
		m := newModel(t, 3, 1000, 2, 60)
		m.leader = leader
		for _, r := range m.replicas {
			r.first, r.since = false, 990
		}
		for range 1000 {
			m.step()
		}
		if len(m.order) < 3 || m.order[2] != leader || m.together > 0 {
			t.Errorf("leader %d: the order is %v, and %d steps had two", leader, m.order, m.together)
		}
	}
}

// A replica that gets no turn takes its snapshot after half an interval more.
func TestATurnThatDoesNotComeIsTaken(t *testing.T) {
	for _, tc := range []struct {
		name  string
		setUp func(*model)
		want  int64 // bytes of log, within two steps
	}{
		{"no leader", func(m *model) { m.leader = -1 }, 1500},
		{"a leader that is gone", func(m *model) { m.replicas[0].dead = true }, 1500},
		{"one that has the turn and does not use it", func(m *model) { m.replicas[1].stuck = true }, 1500},
		{"the same, but it is gone", func(m *model) { m.replicas[1].dead = true }, 1000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newModel(t, 3, 1000, 5, 10)
			for _, r := range m.replicas {
				r.first, r.since = false, 900
			}
			tc.setUp(m)
			for m.replicas[2].left == 0 && m.replicas[2].since < 3*m.every {
				m.step()
			}
			if got := m.replicas[2].since; got < tc.want || got > tc.want+5*5 {
				t.Errorf("taken after %d bytes, want %d", got, tc.want)
			}
		})
	}
}

// A new leader knows at once who writes: the flags are in the answers to its first messages.
func TestTurnsSurviveElections(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m := newModel(t, 3, 1000, 4, 40)
		for range 5000 {
			if rng.IntN(200) == 0 {
				m.leader = rng.IntN(3)
			}
			m.step()
		}
		// A leader that is elected in the moment in which an earlier one gives a turn may give another one.
		if share := float64(m.together) / 5000; share > 0.02 {
			t.Errorf("seed %d: two wrote in %.1f %% of the steps", seed, 100*share)
		}
		for i, r := range m.replicas {
			if r.taken < 14 || m.longest > 1600 {
				t.Errorf("seed %d: replica %d took %d snapshots of 20, the longest interval is %d", seed, i, r.taken, m.longest)
			}
		}
	}
}

// A new leader takes no snapshot, and gives no turn, while a follower writes with the turn of the leader before.
func TestANewLeaderWaitsForTheOneThatWrites(t *testing.T) {
	m := newModel(t, 3, 1000, 2, 60)
	m.leader = 0
	for _, r := range m.replicas {
		r.first, r.since = false, 990
	}
	for m.replicas[1].left == 0 {
		m.step()
	}
	m.leader = 2
	for m.replicas[1].left > 0 {
		m.step()
	}
	if len(m.order) != 1 || m.together > 0 {
		t.Errorf("replicas %v began a snapshot while 1 wrote", m.order)
	}
}

func TestFlags(t *testing.T) {
	for b, want := range map[string]Flags{"": 0, "\x00": 0, "\x05": Due | Turn, "\xff": Due | Writing | Turn,
		"\x02x": Writing} {
		if got := Parse([]byte(b)); got != want {
			t.Errorf("%q: %b, want %b", b, got, want)
		}
	}
}
