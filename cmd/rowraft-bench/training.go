package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/rowraft/rowraft/internal/localcluster"
)

// trainingBench runs training jobs, one after the other, on servers of its own.
type trainingBench struct {
	binary    string // rowraft-trainer
	dir       string // of job files, results and logs
	endpoints []string
}

// startTraining starts the servers of a measurement of training jobs. binary is that of the trainers; "": it is
// searched for. The caller calls cleanup, which removes everything.
func startTraining(ctx context.Context, cfg benchConfig, binary string,
	progress io.Writer) (b *trainingBench, cleanup func() error, err error) {
	b = &trainingBench{}
	if b.binary, err = localcluster.FindBinary("rowraft-trainer", binary); err != nil {
		return nil, nil, err
	}
	cluster, stop, err := benchCluster(ctx, cfg, progress)
	if err != nil {
		return nil, nil, err
	}
	b.endpoints = cluster.Endpoints()
	if b.dir, err = os.MkdirTemp("", "rowraft-bench-"+cfg.op+"-"); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return b, func() error { return errors.Join(os.RemoveAll(b.dir), stop()) }, nil
}

// start runs n trainers, each with the job file of its rank. The caller calls stop, which ends those that still run.
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
