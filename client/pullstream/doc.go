// Package pullstream makes the pulls of a client on streams that stay open for later pulls. A gRPC call of its own for
// each pull took a third of the CPU time of small ones, in the client and in the server.
//
//	client ──Call──► Pool ──takes the stream last used, or opens one──► server
//	       ◄─Replies─ the stream goes back when every batch has its answer; else it is cancelled
//
// # Concurrency
//
// A Pool is safe for concurrent use. Pool.mu is never held across a call. gRPC has a goroutine for each stream.
package pullstream
