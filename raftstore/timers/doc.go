// Package timers chooses the Raft timers of a server and of its groups.
//
// A log write blocks raft's main goroutine, and with it heartbeats and votes. An election makes up to six writes, one
// after the other: term and vote of the candidate, then of the voter. With timers shorter than that, no election
// succeeds. A process without enough CPU sends and answers heartbeats late, with the same effect.
//
//	Delays ──► Server: heartbeat that this server needs ──► Report in each message ──► Group: heartbeat of the group
//
// # A server
//
// Delays measures both kinds of delay. The slower one determines the shortest heartbeat timeout that the server can
// keep: Server.Heartbeat.
//
// # A group
//
// The group uses the longest heartbeat that a member needs. Every message of a replica has its Report, so a group on
// slow disks agrees before it has a leader. The leader's messages contain what the group uses. An increase is applied
// by the followers first, and by the leader after all followers that answer have it. A decrease is applied by the
// leader first. So a leader never sends heartbeats less often than its followers expect.
//
// Raft can change the heartbeat and election timeouts while it runs, but it reads the leader's lease only when it
// starts. So the leader permits one follower after the other to restart in place, then transfers the leadership, and
// its successor permits it to restart. While there is no leader, a replica restarts without permission.
//
// View.Decide is pure: the caller tells it what it sees and executes the Decision.
package timers
