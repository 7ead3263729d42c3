package tables

import (
	"context"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
)

// Stepper is Tables whose trainers depend on each other: modes sync and ssp need one.
type Stepper interface {
	Tables
	// PushStep adds this trainer's gradients to a step of the job, counted from 1, and returns when every shard has
	// closed the step with the mean of its contributors. Without segments it contributes zeros. read are positions
	// in the data that the job's clock shard stores.
	PushStep(ctx context.Context, step int64, read []rowraft.Position, segs []Segment) (StepResult, error)
	// PushIdle is PushStep of a trainer that has nothing to read: it does not count for closing a step.
	PushIdle(ctx context.Context, step int64, read []rowraft.Position) (StepResult, error)
	// PushClock applies gradients at once and raises this trainer's clock, which never falls; read is as for
	// PushStep.
	PushClock(ctx context.Context, clock uint64, read []rowraft.Position, segs []Segment) error
	// WaitClock waits until the slowest trainer's clock is at least atLeast, or ctx ends, and returns the slowest
	// clock.
	WaitClock(ctx context.Context, atLeast uint64) (slowest uint64, err error)
}

// StepResult is the result of a trainer's gradients in a step.
type StepResult struct {
	Late   int   // number of shards that closed the step without them
	Unsure int   // number of shards that no longer know the result
	Next   int64 // the next step
	// Rest are the gradients that the Late shards did not take.
	Rest []Segment
}

var _ Stepper = (*Cluster)(nil)

// Join makes c the tables of a trainer of a job, for modes sync and ssp. Call it before training begins.
func (c *Cluster) Join(o client.JobOptions) (err error) {
	c.job, err = c.client.Job(o)
	return err
}

// Adopt installs a later generation of the job, which the scheduler has announced.
func (c *Cluster) Adopt(g rowraft.Generation) { c.job.Adopt(g) }

func (c *Cluster) member() (*client.Job, error) {
	if c.job == nil {
		return nil, rowraft.Errorf(rowraft.CodePrecondition,
			"this trainer has not joined a job, as modes sync and ssp require")
	}
	return c.job, nil
}

// PushStep implements [Stepper].
func (c *Cluster) PushStep(ctx context.Context, step int64, read []rowraft.Position,
	segs []Segment) (StepResult, error) {
	job, err := c.member()
	if err != nil {
		return StepResult{}, err
	}
	s, err := c.segments(segs)
	if err != nil {
		return StepResult{}, err
	}
	r, err := job.PushStep(ctx, rowraft.Step(step), read, s...)
	result := StepResult{Late: len(r.Late), Unsure: len(r.Unsure), Next: int64(r.Next)}
	if len(r.Late) > 0 {
		result.Rest = c.inShards(r.Late, s, segs)
	}
	return result, err
}

// PushIdle implements [Stepper].
func (c *Cluster) PushIdle(ctx context.Context, step int64, read []rowraft.Position) (StepResult, error) {
	job, err := c.member()
	if err != nil {
		return StepResult{}, err
	}
	r, err := job.PushIdle(ctx, rowraft.Step(step), read)
	return StepResult{Late: len(r.Late), Unsure: len(r.Unsure), Next: int64(r.Next)}, err
}

// inShards returns the gradients for some shards; s are the same segments as the client has them.
func (c *Cluster) inShards(shards []rowraft.ShardID, s []client.Segment, segs []Segment) (out []Segment) {
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

// ForOneTrainer returns t as the Stepper of a job with one trainer. A push may take as long as the patience.
func ForOneTrainer(t Tables, patience time.Duration) Stepper { return onlyTrainer{t, patience} }

// onlyTrainer is a Stepper for the only trainer of a job, which waits for no other.
type onlyTrainer struct {
	Tables
	patience time.Duration
}

func (a onlyTrainer) PushStep(ctx context.Context, step int64, _ []rowraft.Position,
	segs []Segment) (StepResult, error) {
	ctx, cancel := context.WithTimeout(ctx, a.patience)
	defer cancel()
	return StepResult{Next: step + 1}, a.Push(ctx, segs)
}

func (a onlyTrainer) PushIdle(_ context.Context, step int64, _ []rowraft.Position) (StepResult, error) {
	return StepResult{Next: step + 1}, nil
}

func (a onlyTrainer) PushClock(ctx context.Context, _ uint64, _ []rowraft.Position, segs []Segment) error {
	return a.Push(ctx, segs)
}

func (a onlyTrainer) WaitClock(_ context.Context, atLeast uint64) (uint64, error) {
	return atLeast, nil
}
