// Package reference is a second implementation of the state machine of a shard, written
// from docs/formats and ARCHITECTURE.md and not from the code: plain maps,
// scalar arithmetic, one row after the other, its own decoders. It shares no
// code with shard, wire, checkpoint, clustermap and optim (internal/tidy checks
// that), so that it does not repeat a mistake in one of them.
//
//	entry    ─► Machine.Apply ─► answers, rows, sessions, digest
//	snapshot ─► Load          ─┘
//
// Its results must equal those of shard.Machine, to the bit: the tests
// of this package draw logs for both, and e2e/replay applies to it the logs and
// snapshots of stopped servers.
//
// It is slow by design, and not safe for concurrent use.
package reference
