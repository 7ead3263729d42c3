// Package jobs keeps the training jobs of a cluster: the members of each job with their leases and data, and the
// connected trainers. It acts on the scheduler's leader.
//
//	worker ──Enter, Leave, NextSplit──► Service ──propose──► meta.Machine
//	Service.Run ──► silent workers leave ──► generations ──EnsureJob, JobState, EndJob──► every shard's leader
//	trainer ◄──Attend──► Trainers ◄──Await, Prove, Pause── checkpoints.Service
//
// The package sees the rest of the scheduler through one interface, Leader.
//
// # Invariants
//
//  1. The log decides who is a member. Leases, connections and the generations in the shards are soft state: a new
//     leader gives every worker a fresh lease and sends the generations again.
//  2. A worker learns of a generation only after every shard has it (generations).
//  3. The position of a worker that left is read after every shard refuses its pushes (generations.settleSplits).
//  4. One pauseRound at a time pauses the trainers of a job (registry.claim).
//  5. A trainer of a job other than the one that a checkpoint is for cannot make the checkpoint fail: its job is left
//     out as a whole.
//  6. A trainer that stops or ends stays connected until a checkpoint with its state is made (Trainers.mayLeave).
//
// The sequence of a checkpoint with trainers: scheduler/DESIGN.md.
package jobs
