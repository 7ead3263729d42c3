// Package canary breaks promises on purpose, so that the checks of e2e are seen to
// notice. A checker that has never failed proves nothing.
//
// Only binaries built with the tag rowraft_canary can be sabotaged; in all others
// Is is the constant false and the compiler drops what hangs on it. Such a binary
// does one sabotage, named by the environment variable ROWRAFT_CANARY, or none,
// and then its checks must pass: that is the control.
//
// `make canaries` runs them all (scripts/canaries.sh).
package canary

// Name is one promise that is broken.
type Name string

// Each is caught by the tests that scripts/canaries.sh names with it.
const (
	AckBeforeCommit    Name = "ack-before-commit"   // a push is acknowledged once it is proposed
	ForgetSessions     Name = "forget-sessions"     // snapshots leave the sessions out
	SkipFsync          Name = "skip-fsync"          // the log is written and not synced
	StaleReads         Name = "stale-reads"         // a linearizable read believes that it leads
	YoungClaims        Name = "young-claims"        // a replica that proved its age once is young for ever
	MapOrder           Name = "map-order"           // apply updates rows in a map's order
	RestoreInPlace     Name = "restore-in-place"    // a snapshot is read into the living state
	PipelinedAppends   Name = "pipelined-appends"   // AppendEntries are pipelined (hashicorp/raft #612)
	FollowerMisapplies Name = "follower-misapplies" // a follower applies one gradient wrongly
	MemoryRots         Name = "memory-rots"         // a bit of a row at rest turns
	LeaderMisapplies   Name = "leader-misapplies"   // a leader does
	KeepDeleted        Name = "keep-deleted"        // followers pass deletes over
	HeartbeatFastPath  Name = "heartbeat-fast-path" // heartbeats bypass raft's main goroutine (#695)
)
