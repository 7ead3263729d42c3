// Package transport carries the messages of one Raft group between its replicas.
//
//	raft ──► Transport ──► Network ──► peer.Layer or Shared ──► other nodes
//	raft ◄── Consumer ◄── Transport ◄── peer.Layer or Shared ◄── other nodes
//
// Transport is raft's network transport with guards (raftstore/DESIGN.md). It sees every answer, so it knows the
// position of each follower: Progress.
//
// A Transport has a goroutine for raft's own connections, one that accepts the others of its group, one for each of
// these, and one for each message that waits. Close returns after all have ended. A server has one Shared, with a
// goroutine that accepts, and for each connection one that reads and one that writes.
//
// The bytes: docs/formats/peer.md.
package transport
