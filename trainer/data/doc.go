// Package data reads examples: files described by a schema, images with
// labels in idx files, and a generator of click logs whose best possible AUC is known.
//
//	files ─► order of an epoch ─► reader (lines, rows) ─► encoder (Schema) ─┐
//	idx files (images, labels) ─────────────────────────────────────────────┤
//	generator (seed, example number) ───────────────────────────────────────┴─► Batch
//
// A [Source] streams: memory does not grow with the data. Example number i of
// the training part belongs to trainer i mod trainers.
//
// # Keys
//
// The key of a categorical value is xxh3-64 (seed 0) of the feature's name (or
// its table's, if it has one), a zero byte and the value's bytes, so that any language computes it and equal
// values of two features are two keys. A missing value hashes like an empty
// one. TestKey holds vectors.
//
// # Invariants
//
//  1. A source gives the same examples in the same order every time: the order
//     of an epoch is a function of the files, the seed and the epoch's number.
//  2. An error names the file, the line (from 1, the header included) and what
//     was expected; no line is guessed, and none is skipped without a report.
package data
