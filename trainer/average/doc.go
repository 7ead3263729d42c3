// Package average takes means of numbers that trainers hold, over TCP.
//
//	rank 0 (hub) ◄─ part of round r ── rank 1, 2 …     the sum in rank order, ÷ contributors
//	             ── result of round r ─►               the same bits for everybody
//
// Every trainer has a [Group]. The lowest rank of a generation is its hub; the
// others, and it itself, are the hub's members. Who belongs to a generation a
// [Registry] says. docs/formats/average.md has the frames.
//
// # Rounds
//
// A round is complete when the hub has the part of each member that has not said
// farewell. When a connection fails, the round is aborted for all: they come back to
// the hub of the newest generation, say which round they are about to do, and the
// hub begins when all are there. Whoever is behind, because it joins or because it
// missed the result of a round that others have, takes over numbers and round of the
// lowest rank that is furthest, so that a round's result is the same wherever it
// has one.
//
// # Concurrency
//
// Average and Close are called by one goroutine. A Group has a goroutine that
// accepts connections, one that watches the registry, one for the hub if it is
// one, and one per member there; all end in Close.
package average
