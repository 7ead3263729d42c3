// Package raftstore runs the Raft groups of one node: snapshots, the peer
// transport, proposals and linearizable reads. An entry is opaque bytes; what
// they mean is the business of the StateMachine of the group.
//
//	node ──Propose──► Group ──► hashicorp/raft ──► guardedLog ──► raftlog.Log
//	                    │              │
//	                    │              ├──► transport ──► peer port ──► other nodes
//	                    │              └──► fsm ──► StateMachine (shard, scheduler)
//	node ──ReadIndex──► Group ──► node waits with WaitApplied, then reads the machine
//
// # Invariants
//
//  1. Refused is not unknown. An error of Propose, or a Future that ends with
//     CodeNotLeader, CodeNoLeader, CodeOverloaded, CodeClosing or
//     CodeInvalidArgument, says that the entry is in no log and never will be.
//     CodeLeadershipLost, CodeDeadline and CodeInternal say that it may be.
//  2. Fail-stop. A log store, stable store or state machine that failed once is
//     never used again: the group stops, Options.Fatal is called, nothing is
//     acknowledged and no vote is cast after that moment.
//  3. A group never forgets. The registry of the store outlives the directory of
//     a group; a directory that vanished is refused instead of started empty,
//     because a replica without its log could vote twice.
//     Nor does a replica ID come back after RemoveReplica, and what is meant for
//     one replica no other one answers.
//  4. Entries reach the machine in log order, once, with no gap except raft's own
//     entries, and with the bytes that were proposed (a CRC travels with each).
//  5. Raft's main goroutine never waits for the machine: bytes proposed but not
//     applied are bounded on the leader, bytes committed but not applied on
//     followers.
//
// # Goroutines
//
// Each group owns a handful (dispatcher, completer, supervisor, leadership) on
// top of those of hashicorp/raft; Group.Close returns when all have ended. The
// StateMachine's Apply, Snapshot and Restore are called one at a time.
//
// Offline reads logs and snapshots of a node that does not run, and changes none.
//
// raftlog is the log of a group on the disk; entry is the form of one log entry;
// frame is the envelope of small files.
//
// The guards around hashicorp/raft and why each of them exists: DESIGN.md.
// The bytes: docs/formats/peer.md and docs/formats/snapshot-store.md.
package raftstore
