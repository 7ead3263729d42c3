// Package order has what package rowstore needs of a machine: the order in which other threads see loads and stores,
// readers that may still hold what the writer has removed, and hints about memory that is read soon.
//
// A processor drops a prefetch while its queue of missing lines is full; a load waits instead. On an AMD EPYC (Zen 4),
// with 100 MiB of memory and 3 µs between the prefetches and the use, the use of a line took 4 cycles after 16
// prefetches at once, 16 after 32, and 2 after 32 loads. So callers prefetch few lines at once, at most about 12 of
// records, and then work on others until these are there.
package order

// LineBytes is the size of a cache line.
const LineBytes = 64
