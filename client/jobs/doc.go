// Package jobs makes a client a worker of a training job.
//
//	m, err := jobs.Enter(ctx, c, jobs.Entry{Job: "ctr", Worker: "w0", Workers: 2})
//	stream, err := m.Register(ctx, jobs.Registration{Pause: pause})
//	split, err := m.NextSplit(ctx, 1, 0)
//
// A Member has a rank, which the scheduler assigns, and a lease. A trainer registers its membership, and the
// Stream then renews the lease, reports progress, and pauses the training for checkpoints. The client of a
// member pushes under the identity of its rank, so that each shard refuses another process that had the rank.
package jobs
