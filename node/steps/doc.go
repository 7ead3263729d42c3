// Package steps aggregates the gradients of synchronous steps on the leader of a shard.
//
//	worker ──Push (a fragment of its part)──► Aggregator ──Mean──► Leader.Propose (pieces) ──► shard.Machine
//
// A worker sends its part of a step in fragments. When enough workers have pushed a step, the Aggregator closes it: it
// averages the parts in the order of the ranks, and logs the mean in pieces of about one entry each. All waiting calls
// of the step return when its last piece is applied.
//
// # Invariants
//
//  1. The parts are soft state. The log alone decides which steps are closed (shard.Jobs.CheckStep), and a worker
//     sends a part again until it has a result.
//  2. Steps close in order. The next step closes a step that no worker has pushed completely.
//  3. A step that is open in the log, because its leader died after the first piece, is continued after its last
//     applied row, with exactly the contributors that the log names.
//  4. The rows after a step do not depend on which leader closed it, in how many pieces, or in which order the parts
//     arrived.
//  5. Memory is bounded, and the lowest step of the job that has waited longest always has room.
//
// Rules and bytes: docs/formats/steps.md.
package steps
