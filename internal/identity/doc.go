// Package identity owns the data directory of a server: its identity, the
// cluster to which it belongs, and the lock that allows one process at a time.
//
// A directory gets its ids when it is created. A disk that lost its data returns as
// another node, never under the old id, because a replica without its log could
// vote twice.
//
// # Invariants
//
//  1. One process. Open holds an exclusive lock on DIR/LOCK until Close.
//  2. A node id never changes, and a cluster id is written once.
//  3. A crash leaves the old file or the new one, never a mixture: each change
//     writes a new file, syncs it, renames it, and then syncs the directory.
//  4. A directory that contains data but no identity is refused, not adopted.
//
// docs/formats/identity.md describes the bytes.
package identity
