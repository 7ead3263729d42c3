// Package trainer is the training loop: it reads a batch, pulls the rows of its
// keys, runs the model and pushes the gradients, over and over.
//
//	data ─► dedup ─► Tables.Pull ─► pool ─► models.Step ─► unpool ─► Tables.Push
//	        unique keys, ascending              │                      ├─ embeddings: one gradient per unique key
//	                                            │                      ├─ dense weights: every row
//	                                            ▼                      └─ audit rows, one per shard
//	                                     loss, AUC, events
//
// All weights live in tables: embeddings in a sparse table; the dense tensors, cut
// into rows by package tensor, in a dense table. A dense weight is init(seed) + delta:
// each trainer computes init by itself, and the table holds delta, which starts at
// zero. So no trainer has to write initial weights, and trainers may start in any
// order. A job may let the servers or one trainer initialize a parameter instead
// ([ParameterConfig]); its table then holds the weights themselves.
//
// # Invariants
//
//  1. With in_flight 0 the loop pulls a batch after the push of the previous one was
//     acknowledged; one trainer then gives the same bits on any [Tables].
//  2. A batch whose loss or gradients are not finite is skipped whole, counted
//     and named; it pushes nothing, not even audit rows.
//  3. A batch's push counts as acknowledged only after Push returned nil. Each
//     acknowledged push has lowered this trainer's dimension of every audit row by 1
//     exactly once: the rows hold the number of applied pushes.
//  4. No order comes from a map.
//  5. At a boundary, where the loop takes its state, and at the end, the tables hold
//     everything that this trainer has computed, in every mode.
//
// # Modes
//
// The loop pulls and pushes through a syncMode, which package mode implements for each
// mode. In async a push writes the tables directly. In geo the model trains a copy in
// this process, and the mode pushes differences; the counters of pushes then count the
// batches they contain.
//
// # Concurrency
//
// Run starts one goroutine that reads and pulls ahead, and one per unacknowledged
// push. It returns after all have ended. Work items circulate between them; the
// goroutine that holds an item owns its buffers.
//
// DESIGN.md has the reasons.
package trainer
