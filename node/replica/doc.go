// Package replica runs the replicas that the cluster map gives one server, and serves the calls for their shards.
//
//	Table.Pull  ─► replica (leader? fresh enough?) ─► shard.Machine
//	Table.Write ─► replica (leader? admitted? valid?) ─► packer ─► raftstore ─► shard.Machine
//
// # Invariants
//
//  1. The server refuses bad input before the log. The contents of the log were valid on the leader when it proposed
//     them; apply checks again what could break a replica.
//  2. The server acknowledges a push only after its entry is committed and applied on this server. A refusal before the
//     entry is proposed has a Code whose effect is "none"; every later error means "maybe".
//  3. The host follows the cluster map: it runs the replicas that the map gives it, and deletes a replica only when the
//     map says that the replica has left.
//  4. Every entry passes the version check before it is proposed (GroupConfig.Check).
//
// node/DESIGN.md describes the paths of a write and a read, the locks, and the decisions with their reasons.
package replica
