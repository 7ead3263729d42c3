// Package models holds the models a trainer runs: functions from a batch, its
// embeddings and the dense weights to a loss and their gradients.
//
//	fields [B,W] ┐
//	dense [B,N]  ┼─► model ─► logits [B] ─► loss, predictions (float64)
//	weights     ─┘     └────► gradients: [B,W], and one per dense weight
//
// A model keeps no weights: all of them live on the servers, come in with every
// step and leave as gradients. It sees no rows either: the trainer sums the rows
// of each feature into the fields, and gives their gradients back to the rows.
//
// [Kinds] are the models. Those for logs run on the CPU: each is one function, in a
// file of its own, that adds layers to a net (net.go, affine.go, layers.go,
// pairs.go) and returns its head (heads.go). Package kernel has their arithmetic.
// LeNet, and the DLRM on an accelerator, are graphs of the compute library, which
// this package and accel alone know.
//
// # Invariants
//
//  1. The same inputs give the same bits, on one machine and build, in any
//     process and on any number of processors. A batch on several [Threads] has bits
//     of its own for each number of them.
//  2. Examples beyond Batch.N are padding: they change no number that leaves the
//     model.
package models
