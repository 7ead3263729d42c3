// Package reference is the state machine of a shard for the second time, written
// from docs/formats and ARCHITECTURE.md instead of from the code: plain maps,
// scalar arithmetic, one row after the other, its own decoders. It shares no
// code with shard, wire, checkpoint, clustermap and optim (internal/tidy sees to
// that), so that a mistake in one of them is not made here as well.
//
//	entry    ─► Machine.Apply ─► answers, rows, sessions, digest
//	snapshot ─► Load          ─┘
//
// What it computes must equal what shard.Machine computes, to the bit: the tests
// of this package draw logs for both, and e2e/replay feeds it the logs and
// snapshots of stopped servers.
//
// It is slow on purpose, and not safe for concurrent use.
package reference
