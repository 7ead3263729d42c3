// Package vfs is the disk as the durable parts of a server see it: few
// operations, with a promise each, behind an interface.
//
//	raftstore, node, internal/identity ──► FS ──► OS      the operating system
//	                                       ├────► Mem     memory; crashes at will
//	                                       └────► Faulty  any of them; fails at will
//
// # What an implementation promises
//
//  1. After File.Sync returned nil, the file's bytes and length survive a power
//     loss. Its name does not: that is an entry of its directory.
//  2. After SyncDir returned nil, the entries of that directory survive, and no
//     other directory's.
//  3. Rename replaces the target in one step: after a crash either the old or
//     the new file is there, whole.
//  4. Anything else may be lost or torn by a crash, in any order.
//  5. After File.Sync returned an error, the bytes that it did not write may stay
//     readable and still be lost by a crash, also after a later Sync that returned
//     nil. Only what is written again is durable after the next Sync.
//
// Paths are those of the operating system, joined with path/filepath. Files are
// made with mode 0600, directories with 0700: what a server keeps is nobody
// else's.
package vfs
