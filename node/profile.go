package node

import (
	"github.com/rowraft/rowraft/clustermap"
)

// The profiles of Raft timers, from fast to slow, and up to how many replicas on a server each
// is for: every group costs heartbeats, more of them the faster it is.
var profileSteps = []struct {
	name     string
	replicas int
}{{"fast", 24}, {"default", 100}, {"dense", 1 << 30}}

// profileAuto lets the server choose.
const profileAuto = "auto"

// autoProfile chooses the timers for so many replicas on a server. It goes back to faster
// ones only when a quarter below their bound, so that a replica that comes and goes changes
// nothing.
func autoProfile(now string, replicas int) string {
	slower := false // than now, or the same
	for _, p := range profileSteps {
		slower = slower || p.name == now || now == ""
		bound := p.replicas
		if !slower {
			bound -= bound / 4
		}
		if replicas <= bound {
			return p.name
		}
	}
	return profileSteps[len(profileSteps)-1].name
}

// mostReplicas is how many replicas the server has that has most: all choose by it, since a
// leader's heartbeats must suit the followers' timers.
func mostReplicas(m *clustermap.Map) (most int) {
	for _, n := range m.Nodes {
		most = max(most, len(m.ShardsOn(n.ID)))
	}
	return most
}

// profile is the name of the timers that the server's groups have while nothing is slow.
func (n *Node) profile() string {
	if name, ok := n.chosen.Load().(string); ok {
		return name
	}
	switch n.cfg.Profile {
	case "":
		return "default"
	case profileAuto:
		return profileSteps[0].name
	}
	return n.cfg.Profile
}

// fitProfile chooses the timers for a map, unless they were given.
func (n *Node) fitProfile(m *clustermap.Map) error {
	if n.cfg.Profile != profileAuto || len(m.Shards) == 0 {
		return nil
	}
	was, _ := n.chosen.Load().(string)
	most := mostReplicas(m)
	name := autoProfile(was, most)
	if name == was {
		return nil
	}
	p, err := profileOf(name)
	if err != nil {
		return err
	}
	if err := n.store.SetProfile(p); err != nil {
		return err
	}
	n.chosen.Store(name)
	n.log.Info("Raft timers", "profile", name, "most_replicas_on_a_server", most)
	return nil
}
