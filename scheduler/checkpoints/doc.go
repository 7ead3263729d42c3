// Package checkpoints makes and restores checkpoints of a cluster, on the scheduler's leader.
//
//	CreateCheckpoint ──► creation ──WriteShardFile──► every shard's leader ──► destination
//	                       │ Await, Pause, Store ──► Trainers
//	RestoreCheckpoint ──► restoration ──RestoreShard──► every shard's leader
//	RunPolicies ──► the checkpoints that are due, then retention
//	Reconcile ──► the end of a restore that an earlier call began
//
// The package sees the rest of the scheduler through two interfaces: Leader proposes commands and calls shards,
// Trainers pauses the connected trainers and receives their states.
//
// # Invariants
//
//  1. One cut. The rows of all shards and the states of the trainers belong to one moment, at which no trainer is
//     within a batch and no push is accepted.
//  2. The manifest is written last. Without it there is no checkpoint.
//  3. A failed checkpoint deletes its own files and no others: a tag in each name tells them apart.
//  4. A restore is decided by one entry of the log. Before it, a failure drops what was staged. After it, every leader
//     finishes the restore.
//  5. A destination that hangs delays only tasks to the same destination (tasks).
//
// The formats: docs/formats/checkpoint.md. The sequence of a checkpoint and of a restore: scheduler/DESIGN.md.
package checkpoints
