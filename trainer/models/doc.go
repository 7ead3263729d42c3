// Package models holds the models a trainer runs: graphs from a batch, its
// unique embedding rows and the dense weights to a loss and their gradients.
//
//	rows [U,D] ─┐
//	index [B,F] ┼─► graph ─► logits [B] ─► loss, predictions (host, float64)
//	dense [B,N] ┤      └───► gradients: [U,D], already summed per unique row,
//	weights  ───┘                       and one per dense weight
//
// A model keeps no weights: all of them live on the servers, come in with every
// step and leave as gradients. This package and accel are the only ones that
// know the compute library.
//
// # Invariants
//
//  1. The same inputs give the same bits, on one machine and build, in any
//     process and on any number of processors. A batch on several [Threads] has bits
//     of its own for each number of them.
//  2. Rows beyond U and examples beyond Batch.N are padding: they change no
//     number that leaves the model. U is padded to a few sizes because XLA
//     compiles once per shape.
package models
