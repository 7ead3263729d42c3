// Package checkpoint is the format in which the state of a shard leaves memory:
// its writer, its reader and its verifier.
//
// One stream holds one shard at one applied index (docs/formats/snapshot.md):
//
//	header · schemas · sessions · rows by (table, slot) · trailer
//
// # Invariants
//
//  1. One cut. The applied index, the sessions and the digest stand inside the
//     stream, never in a file name or in another file.
//  2. Everything is covered by a checksum, and what is missing, doubled or out
//     of place is found by order and counts. A reader that reached io.EOF saw
//     exactly what the writer wrote.
//  3. Memory is bounded by one chunk on both sides, whatever the size of a slot.
//
// Records are opaque here: their layout belongs to shard/rowstore, their length
// travels with each chunk. The digest in the trailer is a sum over records, so
// who knows the layout can check it; [Verify] takes the function.
//
// A Writer or Reader is used by one goroutine.
package checkpoint
