package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/rowraft/rowraft/e2e/sim"
)

// runSim does a run in virtual time, in this process. ctx ends only the wait for the run: a bubble of
// virtual time cannot wait for events outside it.
func runSim(ctx context.Context, cfg *config, v *view) (*result, error) {
	sc := sim.Config{
		Seed: cfg.Seed, For: cfg.For, Faults: cfg.Faults, Clients: cfg.Clients, Rows: cfg.Rows, Servers: cfg.Servers,
		Shards: cfg.Shards,
		Rate:   cfg.Rate, Profile: cfg.Profile, Backend: cfg.Backend, Dir: cfg.dir,
		Log: func(format string, args ...any) { v.line(fmt.Sprintf(format, args...) + " (virtual)") },
	}
	v.event("seed %d, directory %s", cfg.Seed, cfg.dir)
	res := &result{Schema: jsonSchema, Config: *cfg, Reproduce: cfg.reproduce(), Dir: cfg.dir}
	began := time.Now()
	var out *sim.Result
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		sim.Bubble(func() { out, err = sim.Run(context.Background(), sc) })
	}()
	select {
	case <-done:
	case <-ctx.Done():
		_ = os.RemoveAll(cfg.dir) // goroutines that still write there end with the process
		return nil, context.Cause(ctx)
	}
	took := time.Since(began)
	if err == nil {
		err = out.Judge(sc)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; everything is kept in %s; again: %s", err, cfg.dir, cfg.reproduce())
	}
	res.Seconds, res.Virtual = took.Seconds(), out.Virtual.Seconds()
	res.fromSim(out)
	if res.OK && !cfg.keep {
		res.Dir = ""
		return res, os.RemoveAll(cfg.dir)
	}
	return res, writeJSON(filepath.Join(cfg.dir, resultFile), res)
}

func (r *result) fromSim(s *sim.Result) {
	r.Rounds, r.Faults, r.Terms, r.Gap = s.Rounds, s.Faults, s.Terms, s.Gap.Seconds()
	r.Tried, r.Observed = totals(s.Faults)
	r.Acks, r.Pulls, r.Refused, r.Unknown = s.Acks, s.Pulls, s.Refused, s.Unknown
	r.Pushes = s.Acks + s.Refused + s.Unknown
	r.Lost, r.Doubled, r.Diverged, r.Checked = s.Lost, s.Doubled, s.Diverged, s.Checked
	r.Verdicts, r.Problems = s.Verdicts, s.Problems
	r.OK = len(r.Problems) == 0
	for _, p := range []struct {
		to   *span
		from []time.Duration
	}{{&r.Recovery.FirstPush, s.FirstPush}, {&r.Recovery.AllClients, s.AllClients}, {&r.Recovery.CatchUp, s.CatchUp},
		{&r.Recovery.Serving, s.Serving}} {
		if len(p.from) > 0 {
			p.to.add(p.from...)
		}
	}
}
