// Package sim drives a cluster of whole nodes in one process and in virtual time:
// node.Run as shipped, package client as shipped, on a network in memory that the
// caller can cut, delay and reset. Inside a testing/synctest bubble time jumps when
// all goroutines wait, so minutes of faults take seconds.
//
//	node.Run ──Config.Listener, Dial──┐
//	client.Dial ──Options.Dial────────┴─► Net
//
// The faults, the load and the checkers are those of the real processes (packages
// nemesis, load, check).
//
// # Invariants
//
//  1. A goroutine that waits, waits on a channel, a condition or a timer of its
//     bubble; no goroutine waits for a lock that a waiting goroutine holds. Otherwise
//     virtual time stands still.
//  2. A life of a server ends in one instant: what its goroutines do afterwards
//     reaches neither the network nor the next life.
//  3. After Close no goroutine of the cluster is left.
package sim
