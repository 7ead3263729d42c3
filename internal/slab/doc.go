// Package slab is off-heap memory: fixed-size records that never move ([Slab])
// and power-of-two blocks of words ([Blocks]).
//
// Both take anonymous mappings from the system, so the garbage collector
// neither scans nor counts them, ask for huge pages, and give everything back
// in Close. Address space is reserved a region at a time and made usable as it
// fills, so an empty slab costs address space only.
//
// # Invariants
//
//  1. A record or block keeps its address from Alloc to Free.
//  2. Who allocates frees. A pointer into a slab must not be used after Free or
//     Close; built with the tag invariant, freed places are poisoned.
//  3. One goroutine at a time may Alloc, Free or Close. At of a place that is
//     allocated, and Stats, may run beside Alloc and Free.
package slab
