// Package shard is the state machine of one shard: it holds the rows of a set
// of slots and applies committed log entries to them.
//
// The package does not use Raft, gRPC or the cluster map; package node connects them:
//
//	node ──Validate, CheckPart─► Machine            before the log
//	node ──Pull────────────────► Machine ──► rowstore ──► slab (off-heap)
//	node ──Push──► raftstore ──Apply──► Machine ──► optim, rowstore
//	raftstore ◄──Snapshot, Restore──► Machine ──► checkpoint (the format)
//
// DESIGN.md describes the locks and the life of one Apply, Pull, Snapshot and Restore.
//
// # Invariants
//
//  1. Determinism. Rows, sessions, log time and results after Apply(i)
//     depend only on the state after the previous entry and on entry i: no clock, no
//     randomness, no map iteration order, no fused floats. Every
//     limit and every expiry time is a constant of the format version.
//  2. One cut. A snapshot holds rows, sessions and tables at exactly one applied
//     index, and stores that index in the same stream (docs/formats/snapshot.md).
//  3. At most once. A (client, incarnation, sequence number) changes rows at most
//     one time, and a part changes all its rows or none.
//  4. One result. If a number was refused, every later copy of it gets the same
//     code and has no effect.
//  5. A pull sees whole rows. It may see part of a push: a push of several rows is not
//     atomic for readers.
//  6. A pull delays no entry, however long it takes. Only Close, and an entry or
//     snapshot that replaces all tables, waits for running pulls: for one chunk
//     of keys each.
package shard
