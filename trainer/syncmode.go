package trainer

import (
	"context"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/mode"
	"github.com/rowraft/rowraft/trainer/tables"
)

// syncMode is what the loop needs of a mode of training: it moves rows and gradients between the loop and the tables.
// Pull and Push are safe for concurrent use; package mode states what each method does.
type syncMode interface {
	Begin(done, jobDone int64)
	Pull(ctx context.Context, b *mode.Batch) error
	Refresh(b *mode.Batch)
	Push(ctx context.Context, b *mode.Batch) error
	Idle(ctx context.Context) error
	Drain(ctx context.Context) error
	Finish(ctx context.Context, begin func() (bool, error)) error
	Done() bool
	PushesEmpty() bool
	Wait()
}

// newSyncMode returns the mode of the job.
func (j *Job) newSyncMode() (syncMode, error) {
	o := mode.Options{Tables: j.tables, Run: j.report, Patience: j.cfg.Patience}
	switch j.cfg.Mode {
	case Geo:
		return mode.NewGeo(o, j.geoOptions())
	case Sync, SSP:
		stepper, ok := j.tables.(tables.Stepper)
		if !ok && j.cfg.Trainers > 1 {
			return nil, invalid("mode %s: tables in this process serve one worker, and the job has %d; "+
				"use a cluster or trainers: 1", j.cfg.Mode, j.cfg.Trainers)
		}
		if !ok {
			stepper = tables.ForOneTrainer(j.tables, o.Patience)
		}
		if j.cfg.Mode == SSP {
			return mode.NewSSP(o, mode.SSPOptions{
				Stepper: stepper, Pauses: j.pausePoint, Staleness: j.cfg.Staleness,
			}), nil
		}
		if j.cfg.Trainers > 1 || j.cfg.splitData { // others may join
			j.pausePoint.SetPace(1)
		}
		strict := j.cfg.Quorum == 1 && j.cfg.Deadline == 0
		return mode.NewSyncStep(o, mode.StepOptions{
			Stepper: stepper, Pauses: j.pausePoint, SetRates: j.setRates, LastStep: j.cfg.lastStep(j.set.TrainSize()),
			Strict: strict, PushAgain: strict && j.cfg.splitData,
		}), nil
	}
	return mode.NewAsync(o), nil
}

// lastStep returns the last step of a job in mode sync: that of the trainer with the most batches. 0 means unknown.
// size is the number of training examples.
func (c *Config) lastStep(size int64) (last int64) {
	if c.splitData {
		return c.Steps
	}
	for rank := range c.Trainers {
		last = max(last, c.stepsOf(rank, size))
	}
	return last
}

// geoOptions returns the copies that a trainer in mode geo has: of embeddings, dense weights and audit rows.
func (j *Job) geoOptions() mode.GeoOptions {
	c := &j.cfg
	o := mode.GeoOptions{Every: int64(c.Geo.every()), Concurrent: inFlight(c) > 0}
	add := func(s rowraft.Schema, optimizer rowraft.Optimizer, share float32, limit int) {
		o.Copies = append(o.Copies, mode.GeoCopy{Schema: s, Optimizer: optimizer, Share: share, Limit: limit})
	}
	share := c.Geo.share(c.Trainers)
	optimizer, _ := c.Embeddings.Rule() // Validate has checked it
	for _, s := range j.fields.Tables {
		add(s, optimizer, share, c.Geo.rows())
	}
	optimizer, _ = c.Dense.Rule()
	for _, s := range j.layout.Schemas() {
		add(*s, optimizer, share, 0)
	}
	if c.Audit { // a share of 1, because it counts batches
		add(j.audit, auditOptimizer, 1, 0)
		o.Copies[len(o.Copies)-1].Counts = true
	}
	return o
}
