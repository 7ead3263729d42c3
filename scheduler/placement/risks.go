package placement

import (
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// Risk is a danger for one shard when a server is drained or decommissioned.
type Risk struct {
	Shard rowraft.ShardID
	// NoTarget is set if no other server can receive the replica. Otherwise the shard would have no majority if the
	// process of the server ended now.
	NoTarget bool
	Good     int // other replicas that are up and not drained
	Others   int // other replicas
}

// Risks returns the dangers of giving node the intent to.
func Risks(w *World, node rowraft.NodeID, to clustermap.Intent) (risks []Risk) {
	t := total(w)
	for i := range w.Shards {
		sh := &w.Shards[i]
		if !slices.Contains(sh.Replicas, node) {
			continue
		}
		switch to {
		case clustermap.Drain:
			good := count(sh.Replicas, func(r rowraft.NodeID) bool {
				n := t.node[r]
				return r != node && n != nil && n.Up && !n.Stopping && n.Intent != clustermap.Drain &&
					!slices.Contains(sh.Fenced, r)
			})
			if good < len(sh.Replicas)/2+1 {
				risks = append(risks, Risk{Shard: sh.ID, Good: good, Others: len(sh.Replicas) - 1})
			}
		case clustermap.Decommission:
			if !slices.ContainsFunc(w.Nodes, func(n Node) bool { return n.ID != node && n.serves() && !sh.on(n.ID) }) {
				risks = append(risks, Risk{Shard: sh.ID, NoTarget: true})
			}
		}
	}
	return risks
}
