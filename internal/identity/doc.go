// Package identity owns the data directory of a server: who it is, to which
// cluster it belongs, and that one process at a time has it open.
//
// The ids are born with the directory. A disk that lost its data comes back as
// another node, never under the old id, because a replica without its log could
// vote twice.
//
// # Invariants
//
//  1. One process. Open holds an exclusive lock on DIR/LOCK until Close.
//  2. A node id never changes, and a cluster id is written once.
//  3. A crash leaves the old file or the new one, never a mixture: each change
//     is a new file, synced, renamed, with the directory synced after it.
//  4. A directory that holds data but no identity is refused, not adopted.
//
// The bytes are described in docs/formats/identity.md.
package identity
