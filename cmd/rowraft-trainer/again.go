package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer"
)

// errLost means that the job has continued without this worker.
type errLost struct{ error }

func (e errLost) Unwrap() error { return e.error }

// run makes the job and runs it. A worker that lost its place because it was silent for longer than its lease
// registers again. A worker that arrives when the job is done without it has nothing to do.
func (o *options) run(ctx context.Context, cfg trainer.Config, out io.Writer) error {
	for {
		entered := cfg
		err := o.once(ctx, &entered)
		if errors.Is(err, jobs.ErrDone) {
			fmt.Fprintf(out, "job %s is done: worker %s was lost, and the others have trained its share; to train the job "+
				"once more start all of its workers together, in a minute\n", cfg.Job, o.worker)
			return nil
		}
		lost, is := errors.AsType[errLost](err)
		if !is {
			return err
		}
		fmt.Fprintf(out, "worker %s has lost its place in job %s, and registers again: %v\n", o.worker, cfg.Job, lost.error)
		o.waitForTrainers = nil // the workers that it waited for were there
		cfg = trainer.Again(cfg, entered)
	}
}
