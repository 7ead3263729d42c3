// Package placement decides where replicas and leaders of shards belong.
//
// NewShards places the shards of a new cluster. From then on the scheduler's leader describes to Next, as a
// World, what it knows of servers and shards at one moment, and Next returns the most urgent change. In this order:
//
//  1. Transfer leadership away from a server that must not lead.
//  2. Rebuild a replica of a dead server, add a missing one, replace a fenced one, empty a decommissioned server.
//  3. Move a replica for balance.
//  4. Transfer leadership for balance.
//
// # Invariants
//
//  1. Both are pure functions: no clock, no random number, no map iteration order. So the next leader of the
//     scheduler takes the same steps in the same world.
//  2. The steps end. Each step for balance makes the world strictly better: fewer replicas of a shard in one zone, then
//     a more even number of replicas per server; a more even number of leaders per server, or a shorter chain of
//     transfers until then (TestPlacementSettles).
//
// Package scheduler builds the World from heartbeats and the cluster map, and carries the steps out.
package placement
