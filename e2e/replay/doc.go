// Package replay looks at what stopped servers have on disk: the retained logs and
// snapshots of all replicas. It holds them against each other, replays them
// through package reference and through a fresh shard.Machine, and compares with
// whatever is known of the run: digests that replicas reported, indices that
// clients were told, pushes that they counted.
//
//	log, snapshots of every replica ─► merged log ─► reference ─┐
//	                                              └► Machine   ─┴► digests, sessions, rows
//
// It finds what looking at a running cluster cannot: an entry that is not on a
// majority of disks though it was acknowledged, a rule of an optimizer that is the
// same on all replicas and wrong, a snapshot that lacks a session.
//
// Only what is known to be committed is compared: what a snapshot covers, what a
// reply or a digest has shown, and what a majority of logs holds in the newest of
// their terms. (In an older term that would not be enough: figure 8 of the Raft
// paper.) Replicas may differ in entries beyond.
package replay
