// Package slab is off-heap memory: fixed-size records that never move ([Slab])
// and power-of-two blocks of words ([Blocks]).
//
// Both use anonymous mappings, so the garbage collector
// neither scans nor counts them. Close frees all memory. Memory comes
// in chunks of one huge page. A goroutine of the process touches chunks in advance
// while the stock of them is low (pool), so that Alloc takes
// microseconds at most. The first chunk of each Slab (unless it is short-lived) and Blocks is not from the
// stock and has small pages, so that small tables cost kilobytes. The pool keeps the addresses of first chunks.
//
// # Invariants
//
//  1. A record or block keeps its address from Alloc to Free.
//  2. The component that allocates also frees. A pointer into a slab must not be used after Free or
//     Close; with the build tag invariant, freed places are poisoned.
//  3. One goroutine at a time may call Alloc, Free or Close. At for an allocated place, and
//     Stats, may run concurrently with Alloc and Free.
package slab
