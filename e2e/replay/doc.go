// Package replay checks the data on the disks of stopped servers: the retained logs and
// snapshots of all replicas. It compares them with each other, replays them
// with package reference and with a fresh shard.Machine, and compares the results with
// all other records of the run: digests that replicas reported, indexes that
// clients received, pushes that they counted.
//
//	log, snapshots of every replica ─► merged log ─► reference ─┐
//	                                              └► Machine   ─┴► digests, sessions, rows
//
// It detects errors that are not visible in a running cluster: an acknowledged entry that is
// not on a majority of disks, an optimizer rule that is equally wrong
// on all replicas, a snapshot that lacks a session.
//
// It compares only committed data: entries that a snapshot covers, entries that a
// reply or a digest has shown, and entries that a majority of logs holds in the newest of
// their terms. (In an older term a majority is not sufficient: figure 8 of the Raft
// paper.) Replicas may differ in later entries.
package replay
