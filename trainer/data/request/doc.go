// Package request makes batches of the examples that a program sends: as JSON, as values, or as lines.
//
// Package data encodes them, so that they have the bits of the same values in a file.
package request
