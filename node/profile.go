package node

import (
	"github.com/rowraft/rowraft/clustermap"
)

// profileSteps are the profiles of Raft timers, from fast to slow, each with the largest number of replicas
// on a server that it suits. Every group sends heartbeats, and a faster profile sends more of them.
var profileSteps = []struct {
	name     string
	replicas int
}{{"fast", 24}, {"default", 100}, {"dense", 1 << 30}}

// profileAuto lets the server choose the profile.
const profileAuto = "auto"

// autoProfile returns the profile for a number of replicas on a server. It returns to a faster one only
// when the number is a quarter below that profile's bound, so that one replica that comes and goes changes
// nothing.
func autoProfile(now string, replicas int) string {
	slower := false // slower than now, or the same
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

// mostReplicas returns the largest number of replicas on any server. All servers choose by this number,
// because a leader's heartbeats must suit the timers of its followers.
func mostReplicas(m *clustermap.Map) (most int) {
	for _, n := range m.Nodes {
		most = max(most, len(m.ShardsOn(n.ID)))
	}
	return most
}

// profile returns the name of the timers that the server's groups use while no disk is slow.
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

// fitProfile chooses the timers for a map, unless the configuration names them.
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
