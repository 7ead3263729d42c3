package trainer

import (
	"context"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
)

// Stepper is Tables whose workers know of each other: modes sync and ssp need one.
type Stepper interface {
	Tables
	// PushStep gives this worker's gradients to a step of the job, from 1, and returns
	// when it is closed everywhere, as the mean of those who contributed. Without segments
	// it contributes zeros. read are positions in the data that the job's clock shard is to keep.
	PushStep(ctx context.Context, step int64, read []rowraft.Position, segs []Segment) (StepAnswer, error)
	// PushIdle is PushStep of a worker that has nothing to read: it closes no step before those who have.
	PushIdle(ctx context.Context, step int64, read []rowraft.Position) (StepAnswer, error)
	// PushClock applies gradients at once and raises this worker's clock, which never falls;
	// read as PushStep.
	PushClock(ctx context.Context, clock uint64, read []rowraft.Position, segs []Segment) error
	// WaitClock waits until the slowest worker's clock is at least so high, or ctx ends,
	// and returns it as it is then.
	WaitClock(ctx context.Context, atLeast uint64) (slowest uint64, err error)
}

// StepAnswer says what became of a worker's gradients of a step.
type StepAnswer struct {
	Late   int   // shards that closed the step without them
	Unsure int   // shards that cannot tell any more
	Next   int64 // step to go on with
	// Rest are the gradients that the shards of Late did not take.
	Rest []Segment
}

var _ Stepper = (*Cluster)(nil)

// Join makes c the tables of a worker of a job, for modes sync and ssp. Call it before
// [NewJob].
func (c *Cluster) Join(o client.JobOptions) (err error) {
	c.job, err = c.client.Job(o)
	return err
}

// Adopt makes a later generation of the job known, as the scheduler tells it.
func (c *Cluster) Adopt(g rowraft.Generation) { c.job.Adopt(g) }

func (c *Cluster) member() (*client.Job, error) {
	if c.job == nil {
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "this trainer is no member of a job: modes sync and ssp need it")
	}
	return c.job, nil
}

// PushStep implements [Stepper].
func (c *Cluster) PushStep(ctx context.Context, step int64, read []rowraft.Position, segs []Segment) (StepAnswer, error) {
	job, err := c.member()
	if err != nil {
		return StepAnswer{}, err
	}
	s, err := c.segments(segs)
	if err != nil {
		return StepAnswer{}, err
	}
	r, err := job.PushStep(ctx, rowraft.Step(step), read, s...)
	answer := StepAnswer{Late: len(r.Late), Unsure: len(r.Unsure), Next: int64(r.Next)}
	if len(r.Late) > 0 {
		answer.Rest = c.of(r.Late, s, segs)
	}
	return answer, err
}

// PushIdle implements [Stepper].
func (c *Cluster) PushIdle(ctx context.Context, step int64, read []rowraft.Position) (StepAnswer, error) {
	job, err := c.member()
	if err != nil {
		return StepAnswer{}, err
	}
	r, err := job.PushIdle(ctx, rowraft.Step(step), read)
	return StepAnswer{Late: len(r.Late), Unsure: len(r.Unsure), Next: int64(r.Next)}, err
}

// of are those gradients that are for some shards; s are the segments as the client has them.
func (c *Cluster) of(shards []rowraft.ShardID, s []client.Segment, segs []Segment) (out []Segment) {
	m := c.client.Map()
	for i := range segs {
		part := Segment{Table: segs[i].Table, Dim: segs[i].Dim, LR: segs[i].LR}
		for k, key := range segs[i].Keys {
			if slices.Contains(shards, m.ShardOf(s[i].Table.Slot(key))) {
				part.Keys = append(part.Keys, key)
				part.Values = append(part.Values, segs[i].Values[k*part.Dim:][:part.Dim]...)
			}
		}
		if len(part.Keys) > 0 {
			out = append(out, part)
		}
	}
	return out
}

// PushClock implements [Stepper].
func (c *Cluster) PushClock(ctx context.Context, clock uint64, read []rowraft.Position, segs []Segment) error {
	job, err := c.member()
	if err != nil {
		return err
	}
	s, err := c.segments(segs)
	if err != nil {
		return err
	}
	_, err = job.PushClock(ctx, clock, read, s...)
	return err
}

// WaitClock implements [Stepper].
func (c *Cluster) WaitClock(ctx context.Context, atLeast uint64) (uint64, error) {
	job, err := c.member()
	if err != nil {
		return 0, err
	}
	return job.WaitClock(ctx, atLeast)
}

// alone is a Stepper for the only worker of a job: nobody is ahead or behind.
type alone struct{ Tables }

func (a alone) PushStep(ctx context.Context, step int64, _ []rowraft.Position, segs []Segment) (StepAnswer, error) {
	return StepAnswer{Next: step + 1}, a.Push(ctx, segs)
}

func (a alone) PushIdle(_ context.Context, step int64, _ []rowraft.Position) (StepAnswer, error) {
	return StepAnswer{Next: step + 1}, nil
}

func (a alone) PushClock(ctx context.Context, _ uint64, _ []rowraft.Position, segs []Segment) error {
	return a.Push(ctx, segs)
}

func (a alone) WaitClock(_ context.Context, atLeast uint64) (uint64, error) { return atLeast, nil }
