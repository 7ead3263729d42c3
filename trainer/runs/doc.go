// Package runs records training runs in a folder, and reads, compares and draws them.
//
//	events ──► Recorder ──► DIR/RUN/trainer-N.jsonl ──► List, Open ──► Run ──► Compare, WritePage
//
// A folder of runs has a folder for each run, and each process of a run writes one file in it
// (docs/formats/run-record.md). The trainers of a job share the folder of their run if they share a file system.
//
// # Invariants
//
//  1. A record never delays or ends a run: [Recorder.Observe] does no I/O, and the first error of a file is a note.
//  2. A file is bounded: points are thinned out when there are too many of them.
//  3. Readers take any bytes. They ignore what is torn or damaged, and count it.
package runs
