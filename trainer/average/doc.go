// Package average computes means of numbers that trainers hold, over TCP.
//
//	rank 0 (hub) ◄─ share of round r ── rank 1, 2 …    the sum in rank order, ÷ contributors
//	             ── result of round r ─►               the same bits for every trainer
//
// Every trainer has a [Group]. The lowest rank of a generation is its hub; all
// trainers, the hub included, are the hub's members. A [Registry] decides the members
// of a generation. docs/formats/average.md has the frames.
//
// # Rounds
//
// A round is complete when the hub has the share of each member that has not sent a
// farewell. When a connection fails, the hub aborts the round for all: the members
// reconnect to the hub of the newest generation and send the round that they are
// about to do, and the hub begins when all are there. A member that is behind, because
// it joins or because it missed the result of a round that others have, loads the
// numbers and round of the lowest rank among those that are furthest. So a round has
// one result wherever it has one.
//
// # Concurrency
//
// One goroutine calls Average and Close. A Group has a goroutine that accepts
// connections, one that watches the registry, one for the hub if it is one, and one
// per member there; all end in Close.
package average
