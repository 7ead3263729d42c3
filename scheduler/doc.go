// Package scheduler is the control plane of a cluster: the only authority on
// nodes, the shard map, tables, incarnations and ranks. It is a Raft group of
// its own ("meta") whose members run inside servers.
//
//	client, CLI ──Cluster──► Scheduler ──propose──► Log (raftstore) ──► machine ──► View
//	server ──Hello──► Scheduler ◄──Form── the first start, before any group exists
//	Scheduler.Run ──Admin.EnsureTable, Members, ChangeMembers, TransferLeader──► the leader of a shard
//
// Every server has a Scheduler: it answers Hello and GetMap from what it knows.
// One without the metadata group has no Log attached and refuses the rest; its
// node feeds the View.
//
// # Invariants
//
//  1. Determinism. The machine depends on nothing but the log: ids are drawn by
//     the leader before it proposes.
//  2. One map. Versions grow by one per change; a View never goes back.
//  3. Shards are made once. A second MetaCreateShards, from a leader that did
//     not know of the first, changes nothing.
//  4. An incarnation is greater than every one issued before, by any leader.
//  5. Soft state stays out of the log: heartbeats, liveness and leader hints are
//     the leader's memory, measured by its monotonic clock, and start afresh with
//     it. Losing them loses nothing.
//  6. No apply waits for the scheduler. What a shard must know is driven into
//     the shard's own log, again and again until it answers.
//  7. A move of a replica is a sequence of logged phases (moves.go). Who drives it
//     (drive.go) keeps nothing that the next leader would need, and begins only
//     when it has applied what earlier leaders logged.
//  8. Placement (placement.go) is a pure function of what the leader knows; its steps
//     for the sake of balance end.
//  9. All founders bootstrap the metadata group with the same member list, or
//     not at all (formation.go).
//
// The bytes of its log and snapshots: docs/formats/metadata.md.
package scheduler
