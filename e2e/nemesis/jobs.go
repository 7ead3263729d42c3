package nemesis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rowraft/rowraft/client/jobs"
)

// inventedFor is how long invented jobs are there at least: longer than the lease of the honest one.
const inventedFor = honestLease + 2*time.Second

// neverStands is a trainer that does not answer a pause.
func neverStands(ctx context.Context, _ jobs.Agree) (*jobs.Paused, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// inventedJobs registers jobs that do nothing: one whose worker waits for a peer that never comes, one of whose
// trainers most never come, and, in virtual time, since it costs half a minute, one whose trainer never answers.
// Another job trains meanwhile, and its checkpoints are made.
func inventedJobs(ctx context.Context, a *act) (err error) {
	if a.Checkpoints == "" {
		a.skipped = true
		return nil
	}
	a.target = "jobs"
	h, err := a.honestJob(ctx)
	if err != nil {
		return a.unlessDisturbed(err)
	}
	defer func() { err = errors.Join(err, h.end(ctx)) }()
	if _, err := h.checkpoint(ctx); err != nil { // so it has proved that it answers
		return err
	}
	begun := time.Now()
	c, err := a.Load.Client(ctx)
	if err != nil {
		return a.unlessDisturbed(err)
	}
	defer c.Close()
	limited, cancel := context.WithTimeout(ctx, guestPatience)
	defer cancel()
	name := fmt.Sprintf("invented-%08x-", a.rng.Uint32())
	attend := func(job string, rank, workers int) error {
		_, _, err := enter(limited, c, jobs.Entry{Job: name + job, Worker: "w", Workers: workers, Rank: &rank}, neverStands)
		return err
	}
	_, _, err = enter(limited, c, jobs.Entry{Job: name + "waits", Worker: "w", Workers: 2, Gather: true}, neverStands)
	err = errors.Join(err, attend("absent", 7, 100))
	jobs := 2
	if a.Machines != nil && a.rng.IntN(4) == 0 {
		err = errors.Join(err, attend("silent", 0, 1))
		jobs++
	}
	if err != nil {
		return a.unlessDisturbed(err)
	}
	var longest time.Duration
	for range 2 {
		took, err := h.checkpoint(ctx)
		if err != nil {
			return err
		}
		longest = max(longest, took)
	}
	sleep(ctx, inventedFor-time.Since(begun))
	a.saw("%d jobs that do nothing, 2 checkpoints made, each within %.1f s", jobs, longest.Seconds())
	return nil
}

// unlessDisturbed is err, which says nothing while other faults are done.
func (a *act) unlessDisturbed(err error) error {
	if !a.alone() {
		return nil
	}
	return err
}
