// Package raftstore runs the Raft groups of one node: snapshots, the peer transport, proposals and linearizable reads.
// An entry is opaque bytes; only the StateMachine of the group interprets it.
//
//	node ──Propose──► Group ──► hashicorp/raft ──► logstore.Log ──► raftlog.Log
//	                    │              │
//	                    │              ├──► transport ──► peer port ──► other nodes
//	                    │              └──► fsm ──► StateMachine (shard, scheduler)
//	node ──ReadIndex──► Group ──► node waits with WaitApplied, then reads the machine
//
// # Invariants
//
//  1. Refused is not unknown. An error of Propose, or a Future that ends with CodeNotLeader, CodeNoLeader,
//     CodeOverloaded, CodeClosing or CodeInvalidArgument, means that the entry is in no log and never will be.
//     CodeLeadershipLost, CodeDeadline and CodeInternal mean that it may be.
//  2. Fail-stop. A log store, stable store or state machine that failed once is never used again: the group stops,
//     Options.Fatal is called, and from that moment nothing is acknowledged and no vote is cast.
//  3. A group never forgets. The registry of the store outlives the directory of a group. A directory that vanished is
//     refused, because a replica that started without its log could vote twice. A replica ID is not accepted again
//     after RemoveReplica, and no replica answers a message for another one.
//  4. Entries reach the machine in log order, once, with no gap except raft's own entries, and with the bytes that
//     were proposed (a CRC travels with each).
//  5. Raft's main goroutine never waits for the machine: the bytes proposed but not applied are bounded on the
//     leader, and the bytes committed but not applied are bounded on followers.
//
// # Goroutines
//
// Each group has a few goroutines (dispatcher, completer, supervisor, leadership) in addition to those of
// hashicorp/raft. Group.Close returns when all have ended. The StateMachine's Apply, Snapshot and Restore are called
// one at a time.
//
// # Packages below this one
//
//	raftlog    the log on disk, one for all groups, with term and vote of each
//	logstore   the log as raft sees it: guards, cache, sizes
//	snapstore  the snapshots of a group on disk
//	registry   the groups and starts of a data directory
//	peer       connections between nodes
//	transport  the messages of a group over them
//	marks      what a server remembers of other servers and replicas
//	timers     Raft's timers: what a server needs, and how a group agrees
//	offline    reads the files of a stopped node
//	entry      the bytes of one log entry
//	frame      the envelope of small files
//	hclogger   passes the log messages of hashicorp's libraries to slog
//
// DESIGN.md has the guards around hashicorp/raft and the reason for each. The bytes: docs/formats/peer.md and
// docs/formats/snapshot-store.md.
package raftstore
