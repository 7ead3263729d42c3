// Package rowstore is key → row for one table on one shard.
//
//	Machine ──Pull──► Table ─► index segment of the slot ─► record in a slab
//	        ──Update─►       ─► optim.Rule on the record, version, digest
//
// # Layout
//
// A row is one record off the Go heap, which never moves (all little-endian):
//
//	offset | size      | field
//	0      | 4         | recency counter, 0 for now
//	4      | 4         | admission counter, 0 for now
//	8      | 8         | key
//	16     | 8         | version
//	24     | 4·dim     | weights, float32; of a bfloat16 table 2·dim, padded to 4
//	…      | 4·state   | optimizer state, float32
//
// The same bytes are what a snapshot stores and [Table.RestoreRow] takes.
//
// Each slot has an open-addressing segment of its own, doubled on its own, of
// 8-byte entries: the low half is 1 + the record's place, the high half the low
// 32 bits of the key's hash. Probing is linear from these bits; a hit is
// confirmed by the key in the record, which is read anyway. (An entry that
// holds the key itself takes 16 bytes: just after doubling, at 45 % load, that
// is 36 bytes a row, and 128 bytes of numbers would cost more than 1.4 times
// themselves.) Growth needs the entries only, never the records.
//
// # Invariants
//
//  1. Determinism. Rows, versions and digests after an Update depend on the
//     table before and the arguments only, whatever was pulled, snapshotted or
//     rehashed in between.
//  2. The version of a row is the value its slot's counter took with the row's
//     last change; it starts at 1, and no two rows of a slot share one.
//  3. A slot's digest is the sum mod 2^128 of the hashes of its rows, at all
//     times between calls.
//  4. A key never pushed reads as the initializer and is not created; its first
//     Update or Assign creates it from the same value.
//
// # Concurrency
//
// Table has no lock; its owner has one. Pull, Contains, the statistics and the
// digests read: any number of them may run beside each other and beside the
// methods of a [Snapshot], of which one goroutine at a time calls AppendSlot.
// Update, Assign, RestoreRow, RestoreSlotVersion, BeginSnapshot, Snapshot.End and
// Close need the table for themselves.
package rowstore
