package main

import (
	"context"
	"os"

	"github.com/rowraft/rowraft/e2e/chaos"
	"github.com/rowraft/rowraft/e2e/sim"
)

// startSim does a run in virtual time, in this process. ctx ends only the wait for the run: a bubble of
// virtual time cannot wait for events outside it.
func startSim(ctx context.Context, cfg chaos.Config) (res *chaos.Result, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		sim.Bubble(func() { res, err = chaos.Start(context.Background(), cfg, sim.Driver{}) })
	}()
	select {
	case <-done:
		return res, err
	case <-ctx.Done():
		_ = os.RemoveAll(cfg.Dir) // goroutines that still write there end with the process
		return nil, context.Cause(ctx)
	}
}
