package rpc

import rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"

// Leader is the leader of a shard in a status: its server's id, and what it reported last.
type Leader struct {
	Node    string
	Replica *rowraftv1.ReplicaStatus
}

// Leaders returns the leader of each shard that has one. If two servers report to lead, the one with the higher term
// counts. A server that is down leads nothing, whatever it reported last, and neither does a replica that was removed.
func Leaders(r *rowraftv1.StatusReply) map[uint32]Leader {
	leaders, votes := make(map[uint32]Leader), make(map[string]bool)
	for _, sh := range r.GetMap().GetShards() {
		for _, rep := range sh.GetReplicas() {
			votes[rep.GetId()] = true
		}
	}
	for _, n := range r.GetNodes() {
		for _, rep := range n.GetReplicas() {
			if rep.GetRole() == "leader" && votes[rep.GetReplicaId()] && n.GetState() == "up" &&
				rep.GetTerm() >= leaders[rep.GetShard()].Replica.GetTerm() {
				leaders[rep.GetShard()] = Leader{n.GetNode().GetId(), rep}
			}
		}
	}
	return leaders
}
