// Package raftlog is the durable log of the Raft groups of a server, with the term and the vote of each replica.
//
//	raftstore ──StoreLogs──► Log ──► rowLog ──► Shared  segments of all groups (docs/formats/log.md)
//	                          │
//	                          ├────► boltLog  one file of raft-boltdb, on the operating system's disk only
//	                          │
//	          ──Set────────► metaStore        META: term and vote (docs/formats/log-meta.md), for both
//
// # Invariants
//
//  1. What a method stored survives a power cut once the method has returned.
//  2. Fail-stop. After a failed write it is unknown what the disk holds: each later change of a log that shares the
//     file returns that error.
//  3. A log knows its owner. Each file names the replica or the server that it belongs to, each change in a shared
//     segment its replica, and a log of another owner does not open.
//  4. Damage is not a shorter log. Open returns CodeCorrupt for a group that may have lost something, unless what is
//     damaged can only be the last append, which was not acknowledged. Groups that lost nothing open.
//
// # Concurrency
//
// Raft appends and cuts the tail on its main goroutine and cuts the head on its snapshot goroutine. Any goroutine may
// read. Of the goroutines that change a Shared at the same time, one writes for all. The package starts no goroutine.
package raftlog
