// Package packer packs the pushes that wait for the log of a shard into entries, so that they share an fsync.
//
//	Submit ─► queue ─► pack ─► Proposer ─► deliver ─► Wait
//
// While the server is busy, an entry waits a little for the pushes of other clients (linger).
//
// A push is refused with CodeOverloaded if the queue is full: Submit never waits. The parts of an entry get their
// results in the order of the log.
package packer
