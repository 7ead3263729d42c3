// Package rowstore stores the rows of one table on one shard by key.
//
//	Machine ──Pull──► Table ─► index segment of the slot ─► record in a slab
//	        ──Update─►       ─► optim.Rule on the record, version, digest
//
// # Layout
//
// A row is one record off the Go heap. A record never moves, except out of memory and back (see Tier; all
// little-endian):
//
//	offset | size      | field
//	0      | 4         | recency: tick of the last push, in a tracked table; else 0
//	4      | 4         | count of pushes, in a tracked table; else 0
//	8      | 8         | key
//	16     | 8         | version
//	24     | 4·dim     | weights, float32; of a bfloat16 table 2·dim, padded to 4
//	…      | 4·state   | optimizer state, float32
//
// A snapshot stores these bytes, and [Table.RestoreRow] takes them. The memory of a table that is not tracked has
// neither recency nor count: a record begins with its key.
//
// Each slot has its own open-addressing segment of 8-byte entries, which grows independently of
// the other slots. The low half of an entry is 1 + the record's place. The high half is the key's
// tag: 32 bits that depend on the key and on a secret of the table in this process. Probing is
// linear and starts at the tag. The key in the record confirms a hit; the record is
// read anyway. Growth reads the entries only, never the records.
//
// Rejected: an entry that holds the key itself takes 16 bytes. Just after doubling, at 40 % load,
// that is 40 bytes a row, and a row of 128 bytes of numbers would cost more than 1.4 times
// their size.
//
// A slot with too many rows for a segment of 8,192 entries, such as the slot of a large dense
// tensor, has a directory of segments that are split one by one. So no single step takes longer
// than about 0.1 ms.
//
// A tracked table is one with admission, expiry or capacity. It also stores candidates: keys that
// were pushed but have no row yet, in an exact open-addressing table per slot, 16 bytes each.
// docs/formats/streaming.md specifies when a row is created and removed. Tables that are not
// tracked have a nil pointer instead of all this state.
//
// # Invariants
//
//  1. Determinism. Rows, versions and digests after an Update depend only on the
//     table before it and on the arguments. Pulls, snapshots, growth of the index and moves of rows
//     between memory and disk have no effect on them.
//  2. The version of a row is the value that its slot's counter took at the row's
//     last change. Versions start at 1, and no two rows of a slot share one.
//  3. Between calls, a slot's digest is the sum mod 2^128 of the hashes of its rows and its
//     candidates. Every change in a slot increments its counter.
//  4. A key that was never pushed, or was removed since, reads as the initializer, and a pull does
//     not create it. Its first Update or Assign creates it from the same value.
//
// # Tier
//
// A table with a memory limit (rowraft.Schema.Memory) keeps its cold rows in a file:
//
//	index entry  tag | place+1          ─► record in a slab
//	             tag | coldBit, place   ─► record and checksum in the file, at place × its size
//
// The index stays in memory: 10 to 14 bytes a row. So a key is found without the disk, and a key
// without a row needs the disk only if the 32 bits of its tag are those of a cold row of its slot.
// A row changes in memory only. Its record in the file is immutable: a row that moves
// out gets a new place, in an extent of 256 KiB that is written at once. A place is used again
// when its extent has no row, all readers that may hold the place have left (grace), and no snapshot needs it. CLOCK
// chooses the rows that move out: pulls and changes set a bit, the hand clears it.
//
// A pull reads cold rows from the file in one batch, sorted by place, by up to 16 goroutines. A row
// that moves changes its index entry in one store, so a reader always finds it at one of its places.
// One of four rows that pulls read is kept for the writer, which moves it into memory at its next
// change. Rows are read by pread, not mapped: a page fault would hold a thread of the Go scheduler,
// and an I/O error would be a signal.
//
// For snapshots and checks of a slot, a move is a change of the slot that changes no row: the writer
// claims the slot, and replaces the entry in the older segments that they walk.
//
// A snapshot on the same disk refers to the cold rows by their index entries (tierref.go): a start reads none of them.
//
// # Concurrency
//
// Pull, Contains, Rows and Tier.Prefetch may run at any time, concurrently with each other and with
// everything else except Close. They take no lock and block no writer. All other methods of the
// table have one owner at a time: either the writer (Update, Assign, Delete, RestoreRow,
// RestoreSlotVersion, BeginSnapshot, Snapshot.End, Tier.Settle, Close), or readers of the state between
// two calls of the writer (digests, slots, memory). The other methods of a [Snapshot]
// may run concurrently with Update, Assign, Delete and pulls, on one goroutine at a time.
//
// # Readers
//
// Records lie off the Go heap, and a reader copies them while the writer may change them. So a
// reader proves that its copy is consistent, or copies again (a sequence lock):
//
//	writer                                  reader
//	w1  version = old | busy                r1  v = version; busy: wait; gone: look again
//	    fence: stores before stores         r2  copy the weights
//	w2  change the record                       fence: loads before loads
//	w3  version = next                      r3  version = v? else from r1
//
// w1, w3, r1 and r3 are atomic. Two cases would be wrong; neither can happen:
//
//   - r2 reads a value that w2 stored. w1 is before w2 and r2 is before r3, so r3 is after w1 in
//     the modification order of the version. r3 reads busy or a later version, never v: a
//     slot's counter only rises, and a place holds one key for as long as a reader can know the
//     place (see below).
//   - r2 misses part of a change whose w3 is the value that r1 read. Then w3 would be before w2, or
//     r2 before r1. w3 is a release and r1 an acquire, so neither is possible.
//
// On amd64, loads keep their order and stores keep theirs, whatever their width, and the atomics
// stop the compiler from reordering: the fences are empty. On arm64, w3 is STLR and r1 is LDAR, but
// STLR does not order what follows it and LDAR does not order what precedes it: the fences are
// DMB ISHST and DMB ISHLD. Other machines use a lock between readers and the writer (order.RowLock), and
// so does the race detector where records lie on the Go heap (not Linux).
//
// The writer stores an index entry after the record is busy and has its key. A reader loads the
// entry as an acquire, so a reader that finds the entry sees at least that state. A root publishes
// a whole segment; pointers publish a bucket and a directory. What they replace
// stays unchanged. An outgrown segment and the place of a deleted row are used
// again only when all readers that entered before the removal have left: see grace. A row whose
// place was retired reads as gone, and the reader searches the index again.
//
// A writer changes a record between open and seal. open saves the images that snapshots need, hashes the old row, and
// marks the record busy. seal gives the record the next version, and the digest the new hash instead of the old one.
package rowstore
