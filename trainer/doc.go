// Package trainer is the training loop: it reads a batch, pulls the rows of its
// keys, runs the model and pushes the gradients, over and over.
//
//	data ─► dedup ─► Tables.Pull ─► models.Step ─► Tables.Push
//	        unique keys, ascending      │              ├─ embeddings: one gradient per unique key
//	                                    │              ├─ dense weights: every row
//	                                    ▼              └─ audit rows, one per shard
//	                             loss, AUC, events
//
// All weights live in tables: embeddings in a sparse one; the dense tensors, cut
// into rows by package tensor, in a dense one. A dense weight is init(seed) + delta,
// where each trainer computes init by itself and the table holds delta, which starts
// at zero: so nobody has to write initial weights, and trainers may start in any
// order. A job may have a parameter initialized by the servers or by trainer 0
// instead ([ParameterConfig]); its table then holds the weights themselves.
//
// # Invariants
//
//  1. With in_flight 0 a batch is pulled after the push of the one before it was
//     acknowledged; one trainer then gives the same bits on any [Tables].
//  2. A batch whose loss or gradients are not finite is skipped whole, counted
//     and named; it pushes nothing, not even audit rows.
//  3. A batch's push counts as acknowledged only after Push returned nil, and each
//     that is acknowledged has lowered this trainer's dimension of every audit
//     row by −1 exactly once: the rows hold the number of pushes applied.
//  4. Order is never taken from a map.
//  5. At a boundary, where a state is taken, and at the end, nothing of this trainer's
//     is outside the tables, whatever the mode.
//
// # Modes
//
// The loop pulls and pushes through a way, one for each mode. In async a push is
// one of the tables. In geo the model trains a copy in this process, and
// differences are pushed; sent and acknowledged then count the batches they hold.
//
// # Concurrency
//
// Run starts one goroutine that reads and pulls ahead and one per
// unacknowledged push, and returns after all have ended. Work items circulate
// between them; whoever holds one owns its buffers.
package trainer
