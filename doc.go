// Package rowraft holds the nouns of the project: the types that name things
// (Key, TableID, ShardID …), the table schema, and the errors with their Codes.
//
// Start here. rowraft keeps the embedding tables of recommender models on a
// cluster of servers. A key belongs to one of 4096 slots, a shard is a set of
// slots replicated by one Raft group, and a push is applied exactly once, on
// every replica, with the same bits:
//
//	trainer ─► client ─► node ─► raftstore ─► shard ─► shard/rowstore
//	                      └──── pulls go straight to shard ────┘
//
// ARCHITECTURE.md follows one pull and one push through the tree. This package
// imports the standard library only and is imported by every other one.
package rowraft
