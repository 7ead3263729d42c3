// Package logstore is the log that raft reads and writes: a raftlog.Log behind a guard.
//
//	raft ──► Log ──► raftlog.Log
//	          ├──► cache: recent entries of all groups, bounded by bytes
//	          └──► Ledger: the size of each entry, and which entries are raft's own
//
// Log stops the group at the first error, at a disk that hangs, and at an entry whose checksum is wrong. Raft 1.7.3
// continues after such errors with a wrong state (raftstore/DESIGN.md).
//
// Ledger converts between entries, which raft counts, and bytes, which raftstore counts.
package logstore
