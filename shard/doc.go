// Package shard is the state machine of one shard: it holds the rows of a set
// of slots and applies committed log entries to them.
//
// It knows no Raft, gRPC or cluster map; package node joins them:
//
//	node ──Validate, CheckPart─► Machine            before the log
//	node ──Pull────────────────► Machine ──► rowstore ──► slab (off-heap)
//	node ──Push──► raftstore ──Apply──► Machine ──► optim, rowstore
//	raftstore ◄──Snapshot, Restore──► Machine ──► checkpoint (the format)
//
// # Invariants
//
//  1. Determinism. Rows, sessions, log time and the results after Apply(i)
//     depend only on those after the entry before and on entry i: no clock, no
//     randomness, no map iteration order, no fused floats. Everything that
//     limits or expires is a constant of apply version 1.
//  2. One cut. A snapshot holds rows, sessions and tables at exactly one applied
//     index, and stores that index in the same stream (docs/formats/snapshot.md).
//  3. At most once. A (client, incarnation, sequence number) changes rows at most
//     one time, and a part changes all its rows or none.
//  4. One answer. A number that was answered with an error is spent: whatever
//     copy of it arrives later gets the same code, and never takes effect.
//  5. A pull sees whole rows. It may see part of a push: there is no atomicity
//     over rows.
//  6. A pull delays no entry, however long it takes. Only Close, and an entry or
//     snapshot that replaces all tables, waits for those under way, for a chunk
//     of keys each.
package shard
