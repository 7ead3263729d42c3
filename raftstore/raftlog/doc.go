// Package raftlog is the durable log of one Raft group, with the term and the vote of its replica.
//
//	raftstore ──StoreLogs──► Log ──► rowLog   segments of batches (docs/formats/log.md), the default
//	                          │
//	                          ├────► boltLog  one file of raft-boltdb, on the operating system's disk only
//	                          │
//	          ──Set────────► metaStore        META: term, vote, newest segment (docs/formats/log-meta.md), for both
//
// # Invariants
//
//  1. What a method stored survives a power cut once the method has returned.
//  2. Fail-stop. After a failed write it is unknown what the disk holds: each later change returns that error.
//  3. A log knows its owner. Each of its files names the replica that it belongs to, and a log of another owner does
//     not open.
//  4. Damage is not a shorter log. Open returns CodeCorrupt for damaged files, unless what is damaged can only be the
//     last append, which was not acknowledged.
//
// # Concurrency
//
// Raft appends and cuts the tail on its main goroutine and cuts the head on its snapshot goroutine. Any goroutine may
// read. The package starts no goroutine.
package raftlog
