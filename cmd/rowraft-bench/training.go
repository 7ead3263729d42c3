package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/trainer/tables"
)

// trainingBench runs training jobs, one after the other, on servers of its own.
type trainingBench struct {
	binary    string // rowraft-trainer
	dir       string // has job files, results and logs
	endpoints []string
	client    *client.Client // drops the tables of a job
}

// startTraining starts the servers of a measurement of training jobs. binary is the path of rowraft-trainer; "": it is
// searched for. The caller calls cleanup, which removes everything.
func startTraining(ctx context.Context, cfg benchConfig, binary string,
	progress io.Writer) (b *trainingBench, cleanup func() error, err error) {
	b = &trainingBench{}
	if b.binary, err = localcluster.FindBinary("rowraft-trainer", binary); err != nil {
		return nil, nil, err
	}
	cluster, stop, err := benchCluster(ctx, &cfg, progress)
	if err != nil {
		return nil, nil, err
	}
	b.endpoints = cluster.Endpoints()
	if b.client, err = client.Dial(ctx, client.Options{Endpoints: b.endpoints}); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	if b.dir, err = os.MkdirTemp("", "rowraft-bench-"+cfg.op+"-"); err != nil {
		return nil, nil, errors.Join(err, b.client.Close(), stop())
	}
	return b, func() error { return errors.Join(os.RemoveAll(b.dir), b.client.Close(), stop()) }, nil
}

// start runs n trainers, each with the job file of its rank. The caller calls stop, which ends the running trainers.
func (b *trainingBench) start(ctx context.Context, n int,
	config func(rank int) string) (procs *localcluster.Trainers, stop func(), err error) {
	if procs, err = localcluster.StartTrainers(b.binary, b.dir, config, b.endpoints, n); err != nil {
		return nil, nil, err
	}
	return procs, func() {
		procs.Kill()
		procs.Drain(context.WithoutCancel(ctx))
	}, nil
}

// trainingRun is one job that runs to its end.
type trainingRun struct {
	*trainingBench
	job, yaml string
	trainers  int

	auc      float64
	examples int64
	reused   float64      // share of the rows that came from copies
	seconds  float64      // from the first step to the last acknowledged push
	acks     []ackedSoFar // ascending
}

// ackedSoFar is how many examples the trainers had read when a push was acknowledged.
type ackedSoFar struct {
	seconds  float64 // since the first step
	examples int64
}

// train runs the job to its end and drops its tables. Trainer 0 alone scores the held-out examples.
func (r *trainingRun) train(ctx context.Context) error {
	paths := [2]string{filepath.Join(r.dir, r.job+".yaml"), filepath.Join(r.dir, r.job+"-others.yaml")}
	for i, text := range []string{r.yaml, r.yaml + "evaluate: false\n"} {
		if err := os.WriteFile(paths[i], []byte(text), 0o600); err != nil {
			return err
		}
	}
	procs, stop, err := r.start(ctx, r.trainers, func(rank int) string { return paths[min(rank, 1)] })
	if err != nil {
		return err
	}
	defer stop()
	byRank := make([]int64, r.trainers)
	var first time.Time
	for e := range procs.Events {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if e.Event != localcluster.EventStep && e.Event != localcluster.EventAck {
			continue // other events also count the held-out examples
		}
		if first.IsZero() {
			first = e.Time
		}
		if n := e.Examples - byRank[e.Rank]; n > 0 {
			byRank[e.Rank], r.examples = e.Examples, r.examples+n
		}
		if at := e.Time.Sub(first).Seconds(); e.Event == localcluster.EventAck && at > r.seconds {
			r.seconds = at
			r.acks = append(r.acks, ackedSoFar{at, r.examples})
		}
	}
	if err := procs.Err(); err != nil {
		return err
	}
	results, err := procs.Results()
	if err != nil {
		return err
	}
	r.auc = float64(results[0].AUC)
	var reused, all int64
	for _, t := range results {
		reused, all = reused+t.RowsReused, all+t.RowsReused+t.RowsPulled
	}
	r.reused = float64(reused) / float64(max(all, 1))
	for _, suffix := range []string{tables.EmbeddingsSuffix, tables.DenseSuffix, tables.ProgressSuffix} {
		t, err := r.client.Table(ctx, r.job+suffix)
		if rowraft.CodeOf(err) == rowraft.CodeTableNotFound {
			continue
		}
		if err == nil {
			err = r.client.DropTable(ctx, t)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// halves returns the examples per second of all trainers in each half of the job.
func (r *trainingRun) halves() (first, second float64) {
	middle := r.acks[slices.IndexFunc(r.acks, func(a ackedSoFar) bool { return a.examples >= r.examples/2 })]
	return float64(middle.examples) / middle.seconds,
		float64(r.examples-middle.examples) / (r.seconds - middle.seconds)
}
