// Package node is one server process: it connects the shard state machines, the Raft groups and the gRPC
// services.
//
//	Table.Pull ─► replica (leader? fresh enough?) ─► shard.Machine
//	Table.Push ─► replica (valid? admitted? leader?) ─► batcher ─► raftstore ─► shard.Machine
//
// # Invariants
//
//  1. The server refuses bad input before the log. The contents of the log were valid on the leader when it proposed
//     them; apply checks again what could break a replica.
//  2. The server acknowledges a push only after its entry is committed and applied on this server. A refusal before the
//     entry is proposed has a Code whose effect is "none"; every later error means "maybe".
//  3. The node follows the cluster map: it runs the replicas that the map gives it, and deletes a replica only when the
//     map says that the replica has left.
//
// Run owns every goroutine of the process and returns when all have ended. DESIGN.md describes the parts of a server, the
// paths of a write and a read, the locks, and the decisions with their reasons.
package node
