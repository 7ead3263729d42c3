// Package member is a trainer's membership in its job: how it enters and leaves, what it has of the job's data, where
// it stops for the job's checkpoints, and the state from which it resumes.
//
//	scheduler ──splits──► Splits ──batches──► loop (package trainer) ──► PausePoint ──state──► scheduler
//
// [Resume] finds what a checkpoint has of the job, [Enter] enters the job, and [Membership] is the trainer in it until
// Leave and Park. The loop reads batches from [Splits] and asks [PausePoint] before each batch whether it may begin. A
// mode records through a [Range] that the tables have a batch. Package client makes the calls to the scheduler; this
// package knows neither the loop nor the configuration of a job.
//
// # Invariants
//
//  1. A split is reported as trained only after the tables have all of its batches.
//  2. At a pause every batch that was read is trained, and every push is acknowledged.
//  3. Trainers that wait for each other stop at one boundary, which all of them can reach.
//  4. Training continues while the scheduler is away, as long as the trainer holds splits.
package member
