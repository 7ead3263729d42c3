// Package wire encodes and decodes keys, rows and pushes: the payloads of
// the Table service and the entries of a shard's log.
//
// A payload is a sequence of segments, each {table, dim, dtype, n, keys, values},
// little-endian (docs/formats/payload.md). A log entry is a header and the parts
// of several clients; each part carries one payload (docs/formats/entry.md). So
// the leader copies the received bytes into the log once, and replicas read rows
// directly from the entry.
//
// All input comes from a network or a disk. Parsers check every
// length before they use it and return CodeInvalidArgument (a request) or
// CodeCorrupt (an entry); they never panic. They allocate nothing, and their results
// alias the input.
package wire
