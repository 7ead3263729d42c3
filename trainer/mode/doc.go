// Package mode has the modes of training: how the rows and gradients of a trainer move between its loop and the
// tables.
//
//	Async      a batch is a push of its own; no trainer waits for another
//	SyncStep   a batch is the trainer's share of a step of the job, which the shards close with the mean
//	SSP        as Async, but no trainer gets more than some steps ahead of the slowest
//	Geo        the model trains a copy of the rows, and rounds send its changes every few batches
//
// The loop (package trainer) states as an interface what it needs of a mode. [Run] and [Pauses] are what a mode needs
// of the loop. A mode knows neither the configuration, nor the scheduler, nor where batches come from.
//
// # Invariants
//
//  1. Pull and Push may run concurrently. Push returns when the loop may reuse the batch.
//  2. Each batch with gradients is counted by PushBegan, and later by PushEnded or Late, exactly once.
//  3. A batch's place in the data is done when the tables have the batch, or never will.
//  4. After Drain the tables have everything that was pushed.
//  5. Pushes of one trainer in SyncStep and SSP reach the tables in the order of the batches.
package mode
