// Package turns decides which replica of a group may take its snapshot.
//
// All replicas apply the same log, so without turns all would take their snapshots at the same moment, and the group
// would have no replica that is not slowed by one. Each message between replicas has the Flags of its sender. A
// follower says that a snapshot is due, or that it is being written; the leader gives the turn to one follower at a
// time, and takes its own when no follower needs one. A replica that waits too long takes its snapshot anyway, and says
// so.
package turns
