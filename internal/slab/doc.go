// Package slab is off-heap memory: fixed-size records that never move ([Slab])
// and power-of-two blocks of words ([Blocks]).
//
// Both take anonymous mappings from the system, so the garbage collector
// neither scans nor counts them, and give everything back in Close. Memory comes
// in chunks of one huge page, touched beforehand by a goroutine of the process
// that runs while the stock of them is low (pool), so that Alloc takes
// microseconds at most. The first chunk of each slab is its own and of small
// pages, so that small tables cost kilobytes.
//
// # Invariants
//
//  1. A record or block keeps its address from Alloc to Free.
//  2. Who allocates frees. A pointer into a slab must not be used after Free or
//     Close; built with the tag invariant, freed places are poisoned.
//  3. One goroutine at a time may Alloc, Free or Close. At of a place that is
//     allocated, and Stats, may run beside Alloc and Free.
package slab
