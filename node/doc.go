// Package node is one server process: it joins the shard state machines, the
// Raft groups and the gRPC services.
//
//	Table.Pull ─► replica (leader? fresh enough?) ─► shard.Machine
//	Table.Push ─► replica (valid? admitted? leader?) ─► batcher ─► raftstore ─► shard.Machine
//
// # Invariants
//
//  1. Bad input is refused before the log. What the log holds was valid on the
//     leader at the time, and apply checks again what could break a replica.
//  2. A push is acknowledged after its entry is committed and applied here,
//     never before. A refusal that comes before the entry is proposed carries a
//     Code whose effect is "none"; everything later is "maybe".
//  3. The node follows the cluster map: it runs the replicas the map gives it, and
//     deletes one only when the map says that it has left.
//
// Run owns every goroutine of the process and returns when all have ended.
package node
