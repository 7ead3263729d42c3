// Package scheduler is the control plane of a cluster: the only authority on nodes, the shard map, tables, incarnations
// and ranks. It is a Raft group of its own ("meta") whose members run inside servers.
//
//	client, CLI ──Cluster──► Scheduler ──propose──► Log (raftstore) ──► meta.Machine ──► View
//	server ──Hello──► Scheduler ◄──Form── the first start, before any group exists
//	Scheduler.Run ──Replicas.EnsureTable, Members, ChangeMembers, TransferLeader──► the leader of a shard
//
// Every server has a Scheduler: it serves Hello and GetMap from what it knows. A server without a replica of the
// scheduler's group attaches no Log and refuses all other calls; its node sets the View.
//
// Package meta is the state machine and decides. Package placement computes where replicas belong. Package
// jobs keeps the training jobs and the connected trainers. Package checkpoints makes and restores checkpoints. This
// package has the other services and the control loops, which propose commands and carry decisions out.
//
// DESIGN.md describes the loops, the life of a checkpoint, a move and a restore, and the decisions with their reasons.
//
// # Invariants
//
//  1. Determinism. The state machine depends on nothing but the log: the leader generates ids and reads clocks before
//     it proposes.
//  2. One map. Versions grow by one per change; a View never goes back.
//  3. Shards are created once. A second MetaCreateShards, from a leader that had not applied the first one,
//     changes nothing.
//  4. An incarnation is greater than every one issued before, by any leader.
//  5. Soft state stays out of the log. Heartbeats, liveness and leader hints are in the leader's memory, measured by
//     its monotonic clock, and each leader begins with empty ones. Losing them loses nothing.
//  6. No apply waits for the scheduler. The scheduler writes what a shard must know into the shard's own log, and
//     repeats that until the shard confirms it.
//  7. A move of a replica is a sequence of logged phases (meta/moves.go). The leader that drives it (drive.go) keeps
//     nothing in memory that the next leader needs, and begins only after it has applied what earlier leaders logged.
//  8. Placement (package placement) is a pure function of what the leader knows. Its steps for balance end.
//  9. All founders bootstrap the scheduler's group with the same member list, or not at all (formation.go).
//
// The bytes of its log and snapshots: docs/formats/metadata.md.
package scheduler
