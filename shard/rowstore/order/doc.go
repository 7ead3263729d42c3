// Package order has what package rowstore needs of a machine: the order in which other threads see loads and stores,
// readers that may still hold what the writer has removed, and hints about memory that is read soon.
package order

// LineBytes is the size of a cache line.
const LineBytes = 64
