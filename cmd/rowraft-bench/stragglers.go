package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/rowraft/rowraft/cmd/rowraft-bench/scaffold"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/localcluster"
)

const (
	stragglerWorkers = 4
	// stragglerSleep replaces the model of a step, so that the number of cores is no limit. The
	// slow worker sleeps stragglerSlowdown times as long.
	stragglerSleep    = 50 * time.Millisecond
	stragglerSlowdown = 10
	// stragglerBar is the share of its steps per second that a job must keep with the slow
	// worker, in modes with keeps.
	stragglerBar = 0.8
	// stragglerBegin is the number of steps of each other worker after which measuring begins.
	stragglerBegin = 10
)

// stragglerModes are the modes that are compared. Those with keeps have a bar.
var stragglerModes = []struct {
	name, yaml string
	steps      bool // count steps of the job; otherwise batches of all workers
	keeps      bool
}{
	{"sync", "mode: sync\n", true, false},
	{"sync, quorum 0.75", "mode: sync\nquorum: 0.75\n", true, true},
	{"async", "mode: async\n", false, true},
}

// stragglersResult is the JSON of `bench stragglers`; the field names are a contract.
type stragglersResult struct {
	Schema string          `json:"schema"`
	Op     string          `json:"op"`
	Modes  []stragglerMode `json:"modes"`
	Bar    float64         `json:"bar"`
	Passed bool            `json:"passed"`

	Workers  int     `json:"workers"`
	SleepMs  float64 `json:"model_sleep_ms"`
	Slowdown int     `json:"slowdown"`
	Seconds  float64 `json:"seconds"`
	Servers  int     `json:"servers"`
	Shards   int     `json:"shards"`
	Backend  string  `json:"log_backend"`
	scaffold.Host
}

// stragglerMode is the result of one mode: steps of the job per second in mode sync, batches of
// all workers in async.
type stragglerMode struct {
	Mode    string  `json:"mode"`
	Without float64 `json:"steps_per_second_without"` // the other workers alone
	With    float64 `json:"steps_per_second_with"`    // with the slow worker
	Kept    float64 `json:"kept"`                     // With / Without
	Barred  bool    `json:"barred"`                   // whether it must keep Bar
	Late    int64   `json:"batches_late"`             // late batches of all workers
}

// benchStragglers trains with one slow worker among four and without it, in each mode.
func benchStragglers(ctx context.Context, cfg benchConfig, progress io.Writer) (r *stragglersResult, err error) {
	if !(cfg.seconds > 0) {
		return nil, cli.Usagef("--seconds %v: want more than 0", cfg.seconds)
	}
	training, cleanup, err := startTraining(ctx, cfg, "", progress)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cleanup()) }()
	r = &stragglersResult{
		Schema: cli.JSONSchema, Op: "stragglers", Bar: stragglerBar, Passed: true, Workers: stragglerWorkers,
		SleepMs: float64(stragglerSleep.Milliseconds()), Slowdown: stragglerSlowdown, Seconds: cfg.seconds,
		Servers: cfg.replicas, Shards: cfg.shards, Backend: cfg.backend, Host: scaffold.ThisHost(),
	}
	for i, mode := range stragglerModes {
		m := stragglerMode{Mode: mode.name, Barred: mode.keeps}
		for _, workers := range []int{stragglerWorkers - 1, stragglerWorkers} {
			run := &stragglerRun{
				trainingBench: training, job: fmt.Sprintf("bench%d-%d", i, workers), yaml: mode.yaml, workers: workers,
				ofJob: mode.steps, seconds: cfg.seconds,
			}
			fmt.Fprintf(progress, "%s with %d workers …\n", mode.name, workers)
			rate, late, err := run.measure(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s with %d workers: %w", mode.name, workers, err)
			}
			if workers < stragglerWorkers {
				m.Without = rate
			} else {
				m.With, m.Late = rate, late
			}
		}
		m.Kept = m.With / m.Without
		r.Passed = r.Passed && (!m.Barred || m.Kept >= stragglerBar)
		r.Modes = append(r.Modes, m)
	}
	return r, nil
}

// stragglerRun is one job: the last of its workers is slow if they are all there.
type stragglerRun struct {
	*trainingBench
	job, yaml string
	workers   int
	ofJob     bool // count steps of the job, not of the workers
	seconds   float64

	steps map[int]int64 // by rank
	step  int64         // last step of the job
	acks  int64
	late  int64
}

// measure trains for a while and returns the steps per second.
func (s *stragglerRun) measure(ctx context.Context) (rate float64, late int64, err error) {
	usual, err := s.config("usual", stragglerSleep)
	if err != nil {
		return 0, 0, err
	}
	slow, err := s.config("slow", stragglerSleep*stragglerSlowdown)
	if err != nil {
		return 0, 0, err
	}
	procs, stop, err := s.start(ctx, s.workers, func(rank int) string {
		if rank == stragglerWorkers-1 {
			return slow
		}
		return usual
	})
	if err != nil {
		return 0, 0, err
	}
	defer stop()
	s.steps = make(map[int]int64)
	if err := s.follow(ctx, procs, time.After(time.Minute), func() bool { return s.begun() }); err != nil {
		return 0, 0, err
	}
	from, before, lateBefore := time.Now(), s.count(), s.late
	err = s.follow(ctx, procs, time.After(time.Duration(s.seconds*float64(time.Second))), nil)
	return float64(s.count()-before) / time.Since(from).Seconds(), s.late - lateBefore, err
}

// follow receives events until done returns true or over fires. With done, over is an error.
func (s *stragglerRun) follow(ctx context.Context, procs *localcluster.Trainers, over <-chan time.Time,
	done func() bool) error {
	for done == nil || !done() {
		select {
		case e, ok := <-procs.Events:
			if !ok {
				return errors.Join(errors.New("the trainers have ended"), procs.Err())
			}
			s.add(e)
		case <-over:
			if done != nil {
				return errors.New("the trainers have not begun")
			}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (s *stragglerRun) add(e localcluster.TrainerEvent) {
	s.step = max(s.step, e.JobStep)
	switch e.Event {
	case localcluster.EventStep:
		s.steps[e.Rank] = e.Step
	case localcluster.EventAck:
		s.acks++
	case localcluster.EventLate:
		s.late++
	}
}

// begun reports whether the slow worker has begun, and the others have done stragglerBegin steps.
func (s *stragglerRun) begun() bool {
	for rank := range s.workers {
		if want := int64(stragglerBegin); rank == stragglerWorkers-1 && s.steps[rank] < 1 || rank < stragglerWorkers-1 &&
			s.steps[rank] < want {
			return false
		}
	}
	return true
}

func (s *stragglerRun) count() int64 {
	if s.ofJob {
		return s.step
	}
	return s.acks
}

// config writes a job file for workers whose model sleeps for the given time.
func (s *stragglerRun) config(name string, sleep time.Duration) (path string, err error) {
	path = filepath.Join(s.dir, s.job+"-"+name+".yaml")
	return path,
		os.WriteFile(path,
			fmt.Appendf(nil,
				"job: %s\n%sevaluate: false\nbatch: 64\nmodel: {sleep: %v}\nsteps: 1000000\ngenerator:\n  examples: 0\n", s.job,
				s.yaml, sleep), 0o600)
}

// print writes the result for a person.
func (r *stragglersResult) Print(w io.Writer) error {
	var pairs []string
	for _, m := range r.Modes {
		verdict := ""
		if m.Barred && m.Kept < r.Bar {
			verdict = fmt.Sprintf("; the bar is %.0f %%", 100*r.Bar)
		}
		pairs = append(pairs, m.Mode, fmt.Sprintf("%.1f steps/s without the slow worker, %.1f with it: %.0f %%%s", m.Without,
			m.With, 100*m.Kept, verdict))
	}
	return cli.Facts(w, append(pairs,
		"workers", fmt.Sprintf("%d, a step takes %.0f ms, of one of them %.0f ms", r.Workers, r.SleepMs,
			r.SleepMs*float64(r.Slowdown)),
		"servers", fmt.Sprintf("%s, %s, log %s", cli.Plural(r.Servers, "server"), cli.Plural(r.Shards, "shard"), r.Backend),
		"machine", r.Host.String())...)
}
