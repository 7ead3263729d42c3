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
//	0      | 4         | recency: tick of the last push, in a tracked table; else 0
//	4      | 4         | count of pushes, in a tracked table; else 0
//	8      | 8         | key
//	16     | 8         | version
//	24     | 4·dim     | weights, float32; of a bfloat16 table 2·dim, padded to 4
//	…      | 4·state   | optimizer state, float32
//
// The same bytes are what a snapshot stores and [Table.RestoreRow] takes.
//
// Each slot has an open-addressing segment of its own, doubled on its own, of
// 8-byte entries: the low half is 1 + the record's place, the high half the key's tag,
// 32 bits that depend on the key and a secret of the table in this process. Probing is
// linear from these bits; a hit is confirmed by the key in the record, which is read anyway. (An entry that
// holds the key itself takes 16 bytes: just after doubling, at 40 % load, that
// is 40 bytes a row, and 128 bytes of numbers would cost more than 1.4 times
// themselves.) Growth needs the entries only, never the records. A slot of more
// rows than a segment of 8,192 entries should hold, such as that of a large dense
// tensor, has a directory of segments that are split one by one: nothing is ever
// done at once that takes longer than some 0.1 ms.
//
// A tracked table, one with admission, expiry or capacity, also keeps candidates:
// keys that were pushed and have no row yet, in an exact open-addressing table a
// slot, 16 bytes each. What makes a row, and what removes it, is
// docs/formats/streaming.md; other tables have a nil pointer for all of it.
//
// # Invariants
//
//  1. Determinism. Rows, versions and digests after an Update depend on the
//     table before and the arguments only, whatever was pulled, snapshotted or
//     rehashed in between.
//  2. The version of a row is the value its slot's counter took with the row's
//     last change; it starts at 1, and no two rows of a slot share one.
//  3. A slot's digest is the sum mod 2^128 of the hashes of its rows and its
//     candidates, at all times between calls. Whatever changes in a slot raises
//     its counter.
//  4. A key never pushed, or removed since, reads as the initializer and is not created; its first
//     Update or Assign creates it from the same value.
//
// # Concurrency
//
// Pull, Contains and Rows may run at any time, beside each other and
// beside all else but Close; they take no lock and keep nobody waiting. The rest
// has one owner at a time: the writer (Update, Assign, Delete,
// RestoreRow, RestoreSlotVersion, BeginSnapshot, Snapshot.End, Close), or readers of what it
// left between two calls (digests, slots, memory). The other methods of a [Snapshot]
// run beside Update, Assign, Delete and pulls, on one goroutine at a time.
//
// # Readers
//
// Records lie off the Go heap and are copied while they may be changing, so a
// reader proves that what it copied was whole, or copies again:
//
//	writer                                  reader
//	w1  version = old | busy                r1  v = version; busy: wait; gone: look again
//	    fence: stores before stores         r2  copy the weights
//	w2  change the record                       fence: loads before loads
//	w3  version = next                      r3  version = v? else from r1
//
// w1, w3, r1 and r3 are atomic. If r2 read something that w2 stored, then r3 comes
// behind w1 in the order of that word, because w1 is before w2 and r2 before r3;
// so it finds busy or something later, never v: a slot's counter only rises, and
// a place holds one key for as long as a reader can know it (below). If r2 missed
// something of a change whose w3 is what r1 read, w3 would be before w2 or r2
// before r1; w3 is a release and r1 an acquire, so neither is. On amd64 loads keep
// their order and stores theirs, whatever their width, and the atomics hold the
// compiler; the fences are empty. On arm64 w3 is STLR and r1 LDAR, but neither
// orders what follows a store or precedes a load: the fences are DMB ISHST and
// DMB ISHLD. Any other machine, and the race detector where records lie on the Go
// heap (not Linux), uses a lock of readers and writer instead: rowLock.
//
// An index entry is stored after its record is busy and has its key, and loaded
// as an acquire, so whoever finds it sees that much. A segment is published whole,
// by its root, and a bucket and a directory by their pointers; what they replace
// stays as it was. What is taken out of the index, an outgrown segment or the place of
// a deleted row, is used again only when no reader is left that entered before:
// see grace. A row whose place was retired reads as gone, and the reader looks in
// the index again.
//
// A writer that changes a record brackets it by open and seal: open marks it busy
// when the digest and the snapshots have had the old one, seal gives it the next
// version.
package rowstore
