// Package marks keeps what a server remembers of the other servers and of the replicas of its groups, so that a replica
// whose disk was rolled back is found before it votes (raftstore/DESIGN.md, "Rolled back disks").
//
// A Mark is the least state that an honest replica has. A Process is one run of a server. Store keeps both in memory
// and in one file. Statement and Member are their forms in messages.
//
// The bytes: docs/formats/marks.md and docs/formats/peer.md.
package marks
