package placement

import (
	"cmp"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// NewShards places n shards on nodes. Replica j of shard i is on node i+j; the nodes are in the order of their names,
// alternating between zones. So the numbers of replicas per node differ by at most one, and so do the numbers of first
// replicas, which should lead. Neighbours are in different zones where that is possible. newID generates replica ids.
func NewShards(nodes []clustermap.Node, n int, newID func() string) []clustermap.Shard {
	nodes = slices.SortedFunc(slices.Values(nodes), func(a, b clustermap.Node) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	nodes = zoneByZone(nodes)
	shards := make([]clustermap.Shard, n)
	for i := range shards {
		shards[i].ID = rowraft.ShardID(i)
		for j := range min(ReplicasPerShard, len(nodes)) {
			shards[i].Replicas = append(shards[i].Replicas, clustermap.Replica{
				ID: rowraft.ReplicaID(newID()), Node: nodes[(i+j)%len(nodes)].ID,
			})
		}
	}
	return shards
}

// zoneByZone orders the nodes so that the zones alternate.
func zoneByZone(nodes []clustermap.Node) (out []clustermap.Node) {
	turn := make(map[string]int) // nodes of a zone so far
	rank := make(map[rowraft.NodeID]int)
	for _, n := range nodes {
		zone := n.Label(clustermap.ZoneLabel)
		rank[n.ID] = turn[zone]
		turn[zone]++
	}
	if len(turn) < 2 {
		return nodes
	}
	return slices.SortedStableFunc(slices.Values(nodes), func(a, b clustermap.Node) int {
		return cmp.Or(cmp.Compare(rank[a.ID], rank[b.ID]),
			cmp.Compare(a.Label(clustermap.ZoneLabel), b.Label(clustermap.ZoneLabel)))
	})
}
