package jobs

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

const (
	// stopTogetherPatience bounds how long the trainers of a stopped job may take to stop at one boundary: a dead
	// trainer has to be detected first. After that each trainer stops at its own step.
	stopTogetherPatience = 40 * time.Second
	stopTogetherRetry    = 200 * time.Millisecond
)

// stopRequest is the stop of the trainers of a run at one boundary.
type stopRequest struct {
	incarnations []uint64 // incarnations of the trainers at the start of the stop
	over         bool     // each trainer may be told to stop on its own
}

// canStop reports whether a trainer of a stopped run may be told to stop now. Trainers that synchronize must stop at
// one boundary: otherwise each stops after another step, and no run can resume exactly from a checkpoint of these
// states. The call of the first trainer that asks pauses all of them at one boundary and tells all of them to stop.
func (c *Trainers) canStop(ctx context.Context, a *trainer, r *rowraftv1.MetaRun) bool {
	training := trainingIncarnations(r)
	if !a.announces || r.GetGeneration() == 0 || r.GetGathering() || len(training) < 2 {
		return true
	}
	t := c.registry
	t.mu.Lock()
	h := t.stops[a.id.Job]
	mine := h == nil || !slices.Contains(h.incarnations, a.member.GetIncarnation()) // otherwise h is of an earlier stop
	if mine {
		h = &stopRequest{incarnations: training}
		// From here on the calls of the other trainers wait for this one, so that one round and not several pauses the job.
		t.stops[a.id.Job] = h
	}
	over := h.over
	t.mu.Unlock()
	if !mine {
		return over
	}
	err := c.stopTogether(ctx, r)
	if err != nil {
		c.logger.Warn("the trainers of a job that is stopped did not stop at one step: each stops at its own", "job",
			a.id.Job, "err", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	// The stop must end also when the trainers could not agree: a job that cannot be stopped is worse than states of
	// different steps.
	if h.over = true; ctx.Err() != nil && err != nil && t.stops[a.id.Job] == h {
		delete(t.stops, a.id.Job) // the call of another trainer tries again
	}
	return true
}

// stopTogether pauses the trainers of a run at one boundary and tells them to stop there. It claims the job, so that no
// checkpoint pauses them at the same time: the checkpoint would let trainers continue that are not told yet.
func (c *Trainers) stopTogether(ctx context.Context, r *rowraftv1.MetaRun) error {
	ctx, cancel := context.WithTimeout(ctx, stopTogetherPatience)
	defer cancel()
	for {
		err := c.stopOnce(ctx, r)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(stopTogetherRetry):
		case <-ctx.Done():
			return err
		}
	}
}

func (c *Trainers) stopOnce(ctx context.Context, r *rowraftv1.MetaRun) error {
	now := c.machine.RunOf(r.GetJob())
	if !bytes.Equal(now.GetRun(), r.GetRun()) || !now.GetStopping() {
		return nil // the run has stopped
	}
	if c.generations.of(now.GetRun()).number != now.GetGeneration() {
		return rowraft.Errorf(rowraft.CodeStarting, "generation %d of job %s is not in the shards", now.GetGeneration(),
			now.GetJob())
	}
	trainers := c.trainersOf(now)
	if trainers == nil {
		return rowraft.Errorf(rowraft.CodeNoLeader, "not all trainers of job %s are connected", now.GetJob())
	}
	m := c.newRound(now.GetJob(), make(map[string]error))
	defer m.End()
	if err := m.stop(ctx, trainers); err != nil {
		m.Cancel()
		return err
	}
	for _, p := range m.members {
		_ = p.a.stop(now.GetReason()) // a trainer that disconnected is told when it reconnects
	}
	c.logger.Info("the trainers of a job stop at one step", "job", now.GetJob(), "trainers", len(m.members), "boundary",
		m.members[0].boundary)
	return nil
}

// trainersOf returns the training members of a run if all of them are connected, otherwise nil.
func (c *Trainers) trainersOf(r *rowraftv1.MetaRun) (out []*trainer) {
	training := trainingIncarnations(r)
	for _, a := range c.list() {
		if slices.Contains(training, a.member.GetIncarnation()) {
			out = append(out, a)
		}
	}
	if len(out) < len(training) {
		return nil
	}
	return out
}

// trainingIncarnations returns the incarnations of the present generation. An incarnation is unique across all jobs.
func trainingIncarnations(r *rowraftv1.MetaRun) (out []uint64) {
	for _, m := range r.GetMembers() {
		if meta.IsTraining(m) {
			out = append(out, m.GetIncarnation())
		}
	}
	return out
}
