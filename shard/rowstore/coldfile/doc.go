// Package coldfile keeps records of one size in a file, each at a place.
//
//	place p ─► extent p ÷ n, record p mod n       an extent is n records, written at once
//	record     its bytes, then XXH3-64 of them, seeded with a random number of the extent's write and the place
//
// A record never changes at its place. Add collects records for the next extent, Write writes them and names their
// places, and Free ends the use of a place. When an extent has no record any more, its owner waits until no reader can
// hold a place of it, and calls Reuse. So all writes are large, and none of them has to read a page of the disk first.
// To bound the file, the owner moves the records of a Sparse extent into the one that it writes next.
//
// # Cuts
//
// A cut is the records at one moment. A snapshot stores the places of a cut instead of its records, so the file keeps
// them: an extent that was written before a cut and emptied after it is not written again while the cut is pinned: from
// File.Cut until Cut.Release, and from Cut.Keep until a later cut is kept. Each write of an extent has a seed of its
// own, which the snapshot stores. So a record that was lost, or overwritten after its cut, is a damaged record and
// never taken for another one. Cut.Sync makes the records durable before a snapshot that refers to them.
//
// Open continues with the records of a cut. It reads none of them.
//
// Read and the methods that say so may run concurrently with everything except Close. All other methods have one caller
// at a time. The bytes: docs/formats/cold-rows.md.
//
// Rejected: a B-tree or an LSM tree that finds a row by its key. The index of the table has the place of each row
// already, and the records have one size. CPU of a random record of 1 M, with all files in the page cache of a busy
// machine of two cores; batches of 256 KiB were written in the order of the keys and without syncs, and 1,024 records
// read at a time:
//
//	                                   write 64 B  256 B   read 64 B  256 B   files
//	this file (BenchmarkFile)              1.9 µs  1.5 µs     1.2 µs  2.2 µs  171, 530 MiB
//	bbolt v1.5.0                            14 µs   17 µs     1.9 µs  2.0 µs  111, 308 MiB
//	pebble v2.1.7, block cache of 8 MiB    3.5 µs   11 µs      24 µs   25 µs  197, 441 MiB
//	pebble v2.1.7, of 512 MiB              5.0 µs   15 µs     7.2 µs  9.9 µs
//
// Pebble had no log and no compression, and Bloom filters of 10 bits a key. bbolt reads from a mapping: a page that is
// not in memory holds a thread of the Go scheduler until the disk has read it. Both would store the key of each row.
package coldfile
