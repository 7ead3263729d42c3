// Package snapstore keeps the snapshots of one Raft group on disk.
//
//	raft ──► Watch ──► Store ──► <dir>/<id>/{data,meta}
//
// Store implements raft.SnapshotStore. It replaces raft.FileSnapshotStore, which reads a whole snapshot for its
// checksum before it returns the first byte. Here each chunk has a checksum of its own, so a leader of 10 GB sends at
// once.
//
// # Invariants
//
//  1. A snapshot has its name only when all its files are durable: Close syncs data, meta and the directory, then
//     renames the directory and syncs its parent.
//  2. A reader returns no byte of a chunk before it has checked the chunk.
//  3. A damaged snapshot is skipped and its files stay. A snapshot of a later format version is an error of List,
//     because an older snapshot would bring back older state.
//
// Watch is the Store that a running raft uses. It notices when no snapshot can be read for long.
//
// The bytes: docs/formats/snapshot-store.md.
package snapstore
