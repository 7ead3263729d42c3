// Package vfs is the disk for the durable parts of a server: a few
// operations behind an interface, each with a guarantee.
//
//	raftstore, node, internal/identity ──► FS ──► OS      the operating system
//	                                       ├────► Mem     memory; simulates crashes
//	                                       └────► Faulty  wraps any of them; injects faults
//
// # Guarantees of every implementation
//
//  1. After File.Sync returned nil, the file's bytes and length survive a power
//     loss. Its name does not: the name is an entry of its directory.
//  2. After SyncDir returned nil, the entries of that directory survive, but not those of
//     other directories.
//  3. Rename replaces the target in one step: after a crash either the old or
//     the new file exists, complete.
//  4. A crash may lose or tear anything else, in any order.
//  5. After File.Sync returned an error, the bytes that it did not write may stay
//     readable and still be lost by a crash, even after a later Sync that returned
//     nil. Only bytes that are written again are durable after the next Sync.
//
// Paths are those of the operating system, joined with path/filepath. Files
// have mode 0600 and directories 0700: no other user may read the data of a server.
package vfs
