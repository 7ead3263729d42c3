// Package peer connects the groups of one node with their replicas on other nodes.
//
//	raft ──► Layer.Dial ──preamble──► Port of the other node ──► its Layer of the same group ──► raft
//
// All groups of a node share one Port. Each connection begins with a preamble that names the cluster, both nodes and
// the group, and both ends exchange a marks.Statement: what each remembers of the other. So a node that runs on an
// older copy of its disk is refused before a message of Raft passes (raftstore/DESIGN.md, "Rolled back disks").
//
// # Goroutines
//
// A Port has one goroutine that accepts and one for each handshake. Port.Close returns after they have ended. A Layer
// has none: raft's transport reads its connections, and Layer.Close closes all of them.
//
// The bytes: docs/formats/peer.md.
package peer
