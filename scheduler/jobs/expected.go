package jobs

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

func sortPaused(list []*pausedTrainer) {
	slices.SortFunc(list, func(a, b *pausedTrainer) int { return a.a.id.Compare(b.a.id) })
}

// Await waits until the trainers that a checkpoint needs are connected. left receives the jobs that are left out.
func (c *Trainers) Await(ctx context.Context, need string, skip bool, left map[string]error) error {
	_, err := c.waitForTrainers(ctx, need, skip, left)
	return err
}

// waitForTrainers waits until every expected trainer is connected, for at most absentPatience. It returns the connected
// ones. If a trainer of a job other than need stays absent, the job is added to left: the checkpoint leaves it out.
func (c *Trainers) waitForTrainers(ctx context.Context, need string, skip bool,
	left map[string]error) ([]*trainer, error) {
	patience := time.NewTimer(c.patience.absent)
	defer patience.Stop()
	for {
		// Before the state is read, or a trainer that connects in between would be noticed only at the end of patience.
		changed := c.watch()
		trainers, absent := c.expectedTrainers(need, left)
		if len(absent) == 0 {
			return trainers, nil
		}
		select {
		case <-changed:
			continue
		case <-patience.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		there := need == "" || slices.ContainsFunc(trainers, func(a *trainer) bool { return a.id.Job == need })
		for _, id := range absent {
			err := c.absentError(id)
			switch {
			case skip && there:
				c.logger.Warn("a checkpoint continues without a trainer", "job", id.Job, "rank", id.Rank)
			case id.Job == need:
				return nil, err
			case left[id.Job] == nil:
				c.logger.Warn("a checkpoint leaves a job out: no run of the job can resume from it", "job", id.Job, "err", err)
				left[id.Job] = err
			}
		}
		return slices.DeleteFunc(trainers, func(a *trainer) bool { return left[a.id.Job] != nil }), nil
	}
}

// absentError says why a checkpoint cannot pause an expected trainer.
func (c *Trainers) absentError(id meta.TrainerID) error {
	if c.has(id) {
		return claimedError(id.Job)
	}
	return rowraft.Errorf(rowraft.CodePrecondition,
		"%s is not connected to the scheduler, and its job cannot resume exactly from a checkpoint without its state: "+
			"start it again, or make the checkpoint without it (--skip-absent)", id)
}

// claimedError is the temporary error of a checkpoint that needs the trainers of a job while another round has them.
func claimedError(job string) error {
	return rowraft.Errorf(rowraft.CodeNoLeader,
		"the trainers of job %s are paused for another checkpoint, or are told to stop; try again", job)
}

// expectedTrainers returns the connected trainers and the expected ones that are absent. A connected trainer whose job
// another round has claimed counts as absent.
func (c *Trainers) expectedTrainers(need string, left map[string]error) (trainers []*trainer, absent []meta.TrainerID) {
	out := func(job string) bool { return left[job] != nil || job != need && c.jobWaits(job) }
	trainers = slices.DeleteFunc(c.list(), func(a *trainer) bool { return out(a.id.Job) })
	connected := make(map[string]bool)
	for _, a := range trainers {
		connected[a.id.Job] = true
	}
	// The trainers of a run in which no worker trains may still be about to connect to a new leader.
	newLeader := c.lead.LeadsFor() < 2*c.patience.absent
	expected := make(map[meta.TrainerID]bool)
	for _, r := range c.machine.Runs() {
		if job := r.GetJob(); !out(job) {
			for _, rank := range meta.ExpectedRanks(r, job == need, connected[job] || newLeader) {
				expected[meta.TrainerID{Job: job, Rank: rank}] = true
			}
		}
	}
	if need != "" && !connected[need] {
		expected[meta.TrainerID{Job: need, Rank: 0}] = true
	}
	claimed := c.allClaimed()
	for _, a := range trainers {
		if !claimed[a.id.Job] {
			delete(expected, a.id)
		}
	}
	return trainers, slices.SortedFunc(maps.Keys(expected), meta.TrainerID.Compare)
}

// jobWaits reports whether the workers of a job wait until all of them have entered. None of them trains before that.
func (c *Trainers) jobWaits(job string) bool {
	r := c.machine.RunOf(job)
	return r != nil && (r.GetGeneration() == 0 || r.GetGathering())
}

// Attended describes the trainers of the round for the reply of CreateCheckpoint.
func (m *pauseRound) Attended() (out []*rowraftv1.AttendedTrainer) {
	for _, p := range m.members {
		out = append(out, &rowraftv1.AttendedTrainer{Job: p.a.id.Job, Rank: p.a.id.Rank, Step: p.step,
			PausedNs: uint64(p.pausedFor), Bytes: p.bytes})
	}
	return out
}
