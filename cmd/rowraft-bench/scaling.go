package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/rowraft/rowraft/cmd/rowraft-bench/scaffold"
	"github.com/rowraft/rowraft/internal/cli"
)

// scalingTrainers are the numbers of trainers that are compared.
var scalingTrainers = []int{1, 2, 4}

// scalingMinBatches is the smallest job: with 4 trainers the last batch in flight is added after 1,500 batches
// (trainer/ramp.go), in the first half.
const scalingMinBatches = 3000

// scalingResult is the JSON of `bench scaling`; the field names are a contract.
type scalingResult struct {
	Schema  string       `json:"schema"`
	Op      string       `json:"op"`
	Batches int          `json:"batches"`
	Jobs    []scalingJob `json:"jobs"`
	Servers int          `json:"servers"`
	Shards  int          `json:"shards"`
	Backend string       `json:"log_backend"`
	scaffold.Host
}

// scalingJob has the throughput of one job, in examples per second of all trainers.
type scalingJob struct {
	Trainers   int     `json:"trainers"`
	FirstHalf  float64 `json:"examples_per_second_first_half"` // with the ramp
	SecondHalf float64 `json:"examples_per_second_second_half"`
}

// benchScaling trains one long job with each number of trainers.
func benchScaling(ctx context.Context, cfg benchConfig, progress io.Writer) (r *scalingResult, err error) {
	if cfg.batches < scalingMinBatches {
		return nil, cli.Usagef("--batches %d: want %d or more, so that the second half is measured at full speed",
			cfg.batches, scalingMinBatches)
	}
	training, cleanup, err := startTraining(ctx, cfg, "", progress)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cleanup()) }()
	r = &scalingResult{Schema: cli.JSONSchema, Op: cfg.op, Batches: cfg.batches, Servers: cfg.replicas,
		Shards: cfg.shards, Backend: cfg.backend, Host: scaffold.ThisHost()}
	const batch = 512
	yaml := fmt.Sprintf("job: scaling\nbatch: %d\ngenerator: {examples: %d, held: 512, categorical: 10, dense: 1, "+
		"keys: 500, zipf: 0.7}\nmodel: {dim: 8, bottom: [32], top: [32]}\n", batch, batch*cfg.batches)
	for _, trainers := range scalingTrainers {
		run := &trainingRun{trainingBench: training, job: "scaling", yaml: yaml, trainers: trainers}
		if err := run.train(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", cli.Plural(trainers, "trainer"), err)
		}
		job := scalingJob{Trainers: trainers}
		job.FirstHalf, job.SecondHalf = run.halves()
		fmt.Fprintf(progress, "%s: %.0f examples/s, then %.0f\n", cli.Plural(trainers, "trainer"), job.FirstHalf,
			job.SecondHalf)
		r.Jobs = append(r.Jobs, job)
	}
	return r, nil
}

// print writes the result for a person.
func (r *scalingResult) Print(w io.Writer) error {
	var pairs []string
	for _, j := range r.Jobs {
		pairs = append(pairs, cli.Plural(j.Trainers, "trainer"),
			fmt.Sprintf("%.0f examples/s in the first half, %.0f in the second (%.2f × 1 trainer)", j.FirstHalf,
				j.SecondHalf, j.SecondHalf/r.Jobs[0].SecondHalf))
	}
	return cli.Facts(w, append(pairs, "job", fmt.Sprintf("async, %d batches of 512", r.Batches),
		"servers", fmt.Sprintf("%s, %s, log %s", cli.Plural(r.Servers, "server"), cli.Plural(r.Shards, "shard"), r.Backend),
		"machine", r.Host.String())...)
}
