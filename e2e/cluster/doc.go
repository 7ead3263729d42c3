// Package cluster drives a cluster of real server processes whose every link can
// be made bad: cut in one direction or both, delayed, lossy, slow, reset.
//
// All servers advertise the addresses of proxies in this process, so all traffic,
// of Raft and of gRPC, between servers and from clients, passes here:
//
//	n1 ──► proxy of n2's peer port ──► n2    source from the preamble (docs/formats/peer.md)
//	n1 ──► proxy of n2's gRPC port ──► n2    source from the socket's owner (/proc)
//	client ─► the same                       source "client"
//
// A LinkPolicy belongs to a directed link: requests of a connection from a to b
// travel on a→b, its replies on b→a. What a cut holds back is delivered when it
// heals, as TCP does: stale messages are part of the test. No root is needed.
//
// # Invariants
//
//  1. Bytes of one direction of one connection arrive in order, unchanged, or not
//     at all after a reset.
//  2. Close ends every process, connection and goroutine that was started here.
package cluster
