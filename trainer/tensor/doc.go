// Package tensor lays tensors of any shape out in the rows of a dense table.
//
//	values 0 … size−1, row-major ─► row i/width, column i mod width ─► DenseKey(number, row)
//
// The last row is padded with zeros, which no gradient touches. All rows of one tensor lie in one shard. The users
// of a table must agree on the number, shape and width of each tensor beforehand: a row does not contain them.
//
// # Invariants
//
//  1. Sizes, positions and row numbers are 64-bit everywhere, and nothing is
//     allocated by the size of a tensor: one may have 2^40 rows.
//  2. A call moves at most a few MiB at a time, whatever its range.
package tensor
