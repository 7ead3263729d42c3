// Package wire turns keys, rows and pushes into bytes and back: the payloads of
// the Table service and the entries of a shard's log.
//
// A payload is a run of segments, each {table, dim, dtype, n, keys, values},
// little-endian (docs/formats/payload.md). A log entry is a header and the parts
// of several clients, each part carrying one payload (docs/formats/entry.md), so
// the leader copies what it received into the log once and replicas read rows
// straight from the entry.
//
// Everything read here comes from a network or a disk: parsers check every
// length before they use it and return CodeInvalidArgument (a request) or
// CodeCorrupt (an entry), never panic. They allocate nothing and their results
// alias the input.
package wire
