// Package meta is the state machine of the scheduler's group: the cluster map, tables, jobs with their runs, moves,
// operations, restores, checkpoint policies and join tokens.
//
//	scheduler ──EncodeEntry──► the group's log ──► Machine.Apply ──► state ──► View (the newest map)
//	scheduler ◄──Runs, Moves, Policies …── Machine                     │
//	                                     topology · catalog · registry · policies · tokens
//
// state routes a command to the part that it concerns; a command that concerns several is a method of state. The parts
// know nothing of each other: topology (servers, shards, moves, operations), catalog (tables, restores, the checkpoints
// that tables come from), registry (runs of jobs, members, data), policies and tokens. Each one owns its fields, saves
// them into a snapshot, and loads and checks them.
//
// A command checks everything first and then changes, so an error means that nothing changed, and every member returns
// the same error. A change of the map increments its version, and Apply publishes an immutable copy in the View.
//
// # Invariants
//
//  1. Determinism. The state after an entry depends on the state before it and on the entry alone: no clock, no random
//     number, no map iteration order. The leader generates ids and reads clocks before it proposes.
//  2. Values that readers hold outside the lock are immutable: a command replaces them.
//  3. The state is bounded, so that its snapshot stays small.
//  4. Unknown entries and unknown fields stop the member: it would differ from the others.
//
// Concurrency: raftstore calls Apply, Snapshot and Restore from one goroutine. Any goroutine may call the other
// methods.
//
// The bytes of entries and snapshots: docs/formats/metadata.md.
package meta
