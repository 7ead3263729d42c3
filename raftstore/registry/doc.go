// Package registry keeps the durable list of the groups and starts of a data directory.
//
// The file is outside of the directories of the groups, so that a directory that vanished is noticed: a replica that
// started without its log could vote twice. For the same reason a replica ID that left the node stays in the list.
//
// The bytes: docs/formats/snapshot-store.md.
package registry
