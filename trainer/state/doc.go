// Package state is what a trainer needs besides the rows to go on exactly where
// it was: its position in the data, its counters, the tensors that no table
// holds, and what of its configuration must not change.
//
// The bytes: docs/formats/trainer-state.md. They are written and read as a
// stream, for dense weights of hundreds of MB.
package state
