// Package route decides how a call reaches the server that can answer it.
//
// A call goes to a server that may have lost the lead, may be restarting, or may be
// gone. Every caller in this module uses the same parts:
//
//   - [On] turns an error into an [Action]. The decisions are data: one table of
//     [rowraft.Code] × [Layer]. docs/push.md shows the column of a push.
//   - [Backoff] gives the pauses between tries: 5 ms to 100 ms, with jitter.
//   - [Pool] keeps the connections, one set per address.
//   - [Budget] bounds what is sent again because servers are overloaded.
//   - [Walk] chooses the server of each try of a call to the leader of a group.
//   - [Cluster] finds the scheduler's leader, the newest map and the leader of a shard from
//     the addresses of any servers.
//
// Package client adds what only a client of the tables needs: leader hints per shard,
// relays around a broken network path, and sessions.
package route
