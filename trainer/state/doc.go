// Package state is the state of a trainer besides the rows, for an exact resume: its position in the data, its
// counters, the tensors that no table holds, and the settings that must not change.
//
// docs/formats/trainer-state.md has the bytes. They are written and read as a stream, because dense weights may
// have hundreds of MB.
package state
