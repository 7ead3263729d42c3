package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/e2e/cluster"
	"github.com/rowraft/rowraft/e2e/history"
	"github.com/rowraft/rowraft/e2e/load"
	"github.com/rowraft/rowraft/e2e/nemesis"
	"github.com/rowraft/rowraft/e2e/verdict"
	"github.com/rowraft/rowraft/internal/localcluster"
)

// Files in the directory of a run.
const (
	configFile  = "config.json"
	historyFile = verdict.HistoryFile
	seenFile    = verdict.SeenFile
	resultFile  = "result.json"
	serversDir  = "servers"
	healthyDir  = "checkpoints"
)

// Durations and limits of a run, and the least that a run must do.
const (
	roundLength  = 30 * time.Second
	warmUp       = 2 * time.Second
	startLimit   = time.Minute
	finalLimit   = time.Minute
	pushPatience = 90 * time.Second // longer than any fault: after that a push counts as stuck

	// A log frees dropped entries segment by segment.
	snapshotEvery = 256 << 10
	trailingLog   = 64 << 10
	logSegment    = 256 << 10
	shortLog      = 2*snapshotEvery + trailingLog + 2*logSegment

	minAcksPerSecond = 10
)

// chaos is a run in progress.
type chaos struct {
	cfg     *config
	view    *view
	res     *result
	cluster *cluster.Cluster
	watch   *cluster.Watch
	load    *load.Load
	rec     *history.Recorder
	world   *nemesis.World
	hung    *nemesis.HungStore
}

// runChaos does a whole run. An error means that the run could not complete; violations are in the result.
func runChaos(ctx context.Context, cfg *config, v *view) (*result, error) {
	r := &chaos{cfg: cfg, view: v, res: &result{Schema: jsonSchema, Reproduce: cfg.reproduce(), Dir: cfg.dir}}
	began := time.Now()
	if err := writeJSON(filepath.Join(cfg.dir, configFile), cfg); err != nil {
		return nil, err
	}
	v.event("seed %d, directory %s", cfg.Seed, cfg.dir)
	before := ownUsage()
	err := r.run(ctx)
	if err == nil {
		r.nothingLeft(before)
	}
	r.res.Config = *cfg
	r.res.Seconds = time.Since(began).Seconds()
	if err != nil {
		return nil, fmt.Errorf("%w; everything is kept in %s; again: %s", err, cfg.dir, cfg.reproduce())
	}
	r.res.OK = len(r.res.Problems) == 0
	if r.res.OK && !cfg.keep {
		r.res.Dir = ""
		return r.res, os.RemoveAll(cfg.dir)
	}
	return r.res, writeJSON(filepath.Join(cfg.dir, resultFile), r.res)
}

func (r *chaos) run(ctx context.Context) (err error) {
	if r.rec, err = history.Create(filepath.Join(r.cfg.dir, historyFile)); err != nil {
		return err
	}
	err = r.withCluster(ctx)
	err = errors.Join(err, r.rec.Close())
	if err != nil {
		return err
	}
	return r.checkRecords()
}

// withCluster runs the phases that need the servers.
func (r *chaos) withCluster(ctx context.Context) (err error) {
	if err := r.start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.hung.Close()) }()
	defer func() {
		r.watch.Close()
		err = errors.Join(err, r.load.Close())
		if cerr := r.cluster.Close(); cerr != nil {
			r.wrong("servers do not stop: %v", cerr)
		}
		r.sum()
		seen := r.watch.Seen()
		seen.Leads = append(seen.Leads, r.readLogs()...)
		err = errors.Join(err, writeJSON(filepath.Join(r.cfg.dir, seenFile), seen))
	}()
	kinds, err := nemesis.Pick(r.cfg.Faults, false)
	if err != nil {
		return err
	}
	before, err := r.baseline(ctx)
	if err != nil {
		return err
	}
	schedule := nemesis.NewSchedule(r.cfg.Seed, kinds)
	end := time.Now().Add(r.cfg.For)
	for time.Now().Before(end) && ctx.Err() == nil && len(r.res.Problems) == 0 {
		until := time.Now().Add(roundLength)
		if end.Sub(until) < roundLength/2 {
			until = end
		}
		if err := r.round(ctx, schedule, until); err != nil {
			return err
		}
		r.res.Rounds++
	}
	r.backToNormal(ctx, before)
	return context.Cause(ctx)
}

func (r *chaos) start(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	dir := filepath.Join(r.cfg.dir, serversDir)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	opts := localcluster.Options{
		Binary: r.cfg.binary, Dir: dir, Servers: r.cfg.Servers, Shards: r.cfg.Shards, Backend: r.cfg.Backend,
		Profile: r.cfg.Profile,
		Args: []string{
			// A server whose disk hangs because of a fault must end. A server whose disk is only busy should not.
			"--disk-reserve-bytes", "1", "--disk-stall-limit", "10s",
			// Frequent snapshots, and replicas that need them.
			"--proof-every", "500ms", "--snapshot-every-bytes", fmt.Sprint(snapshotEvery), "--trailing-log-bytes",
			fmt.Sprint(trailingLog),
			"--log-segment-bytes", fmt.Sprint(logSegment),
			// Replicas with a rolled back disk are replaced during the run.
			"--replace-after", "20s",
		},
	}
	if r.cfg.Backend != "bolt" { // bolt maps its file into memory, where faults have no effect
		cluster.WithDiskFaults(&opts)
	}
	healthy := filepath.Join(r.cfg.dir, healthyDir)
	if err := os.Mkdir(healthy, 0o755); err != nil {
		return err
	}
	if r.hung, err = nemesis.NewHungStore(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.hung.Close())
		}
	}()
	opts.Env = append(opts.Env, r.hung.Env()...)
	if r.cluster, err = cluster.Start(ctx, opts); err != nil {
		return err
	}
	r.load, err = load.New(ctx, load.Options{
		Endpoints: r.cluster.Endpoints(), Clients: r.cfg.Clients, Rows: r.cfg.Rows, Seed: r.cfg.Seed,
		PerSecond: r.cfg.Rate, Recorder: r.rec, PushPatience: pushPatience,
	})
	if err != nil {
		return errors.Join(err, r.cluster.Close())
	}
	r.watch = r.cluster.NewWatch(r.rec.Now)
	r.world = &nemesis.World{
		Cluster: r.cluster, Net: r.cluster.Net, Watch: r.watch, Load: r.load, Recorder: r.rec, Shards: r.cfg.Shards,
		Log: r.view.event, ShortLogBytes: shortLog,
		Checkpoints: healthy, Hung: r.hung,
	}
	disks := "that cannot be told to fail"
	if r.cluster.CanDisk() {
		disks = "that can be told to fail"
	}
	r.view.event("%d servers serve, log backend %s, disks %s, %d clients",
		r.cfg.Servers, r.cfg.Backend, disks, r.cfg.Clients)
	return nil
}

// round is a safety phase, the end of the faults, a liveness phase and final reads. The last faults of the
// safety phase stay until the heal.
func (r *chaos) round(ctx context.Context, s *nemesis.Schedule, until time.Time) error {
	r.phase("safety")
	r.load.Start()
	shown, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { r.showProgress(shown) })
	r.world.Run(ctx, s, until)
	heal, ended := r.world.Stand(ctx, s)
	stop()
	wg.Wait()
	r.phase("heal")
	healed := time.Now()
	heal()
	r.cluster.Net.Heal()
	r.phase("liveness")
	r.liveness(ctx, healed, ended)
	quiet, cancel := context.WithTimeout(ctx, finalLimit)
	defer cancel()
	if err := r.load.Quiesce(quiet); err != nil {
		r.wrong("%v", err)
		return context.Cause(ctx)
	}
	r.phase("final")
	return r.final(ctx)
}

func (r *chaos) phase(name string) {
	now := r.rec.Now()
	r.rec.Add(history.Op{Kind: history.Phase, Client: -1, Fault: name, Call: now, Return: now, Outcome: history.OK})
}

func (r *chaos) showProgress(ctx context.Context) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	began := r.view.start
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c := r.load.Counts()
		tried, observed := totals(r.world.Counts())
		r.view.progress(time.Since(began), r.cfg.For,
			fmt.Sprintf("%d acks  %d reads  %d faults, %d observed  %d terms",
				c.Acks, c.Pulls, tried, observed, r.watch.Terms()))
	}
}

// final compares all rows with the acknowledged pushes, and all replicas with each other.
func (r *chaos) final(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, finalLimit)
	defer cancel()
	f, err := r.load.Final(ctx)
	if err != nil {
		r.wrong("%v", err)
		return nil
	}
	r.res.Lost, r.res.Doubled = f.Lost, f.Doubled // of all rounds: the counters are cumulative
	for _, d := range f.Details {
		r.wrong("%s", d)
	}
	if err := r.cluster.AwaitWhole(ctx, min(3, r.cfg.Servers)); err != nil {
		r.wrong("%v", err)
	}
	fenced, err := r.cluster.Proved(ctx)
	if err != nil {
		r.wrong("proof: %v", err)
	}
	for _, f := range fenced {
		r.wrong("proof: %s", f)
	}
	rows := uint64(0)
	for shard := range r.cfg.Shards {
		digests, err := r.cluster.Digests(ctx, rowraft.ShardID(shard))
		if err != nil {
			r.wrong("digests: %v", err)
			continue
		}
		names := slices.Sorted(maps.Keys(digests))
		first := digests[names[0]]
		rows += first.Rows
		for _, name := range names[1:] {
			if digests[name] != first {
				r.res.Diverged++
				r.wrong("shard %d has diverged: %s holds %+v, %s %+v", shard, names[0], first, name, digests[name])
			}
		}
		if want := min(3, r.cfg.Servers); len(names) != want {
			r.wrong("shard %d has %d replicas, want %d", shard, len(names), want)
		}
	}
	if least, most := r.load.Rows(); rows < uint64(least) || rows > uint64(most) {
		r.wrong("the shards hold %d rows, want %d to %d", rows, least, most)
	}
	refused, err := r.cluster.WronglyRefused()
	if err != nil {
		r.wrong("%v", err)
	}
	for _, p := range refused {
		r.wrong("%s", p)
	}
	for _, p := range r.cluster.Dead() {
		r.wrong("server %s has ended by itself; its log: %s", p, r.cluster.Server(p).LogFile)
	}
	r.view.event("round %d: %d pushes checked, %d updates lost, %d doubled, %d shards of one digest",
		r.res.Rounds+1, r.load.Counts().Acks, f.Lost, f.Doubled, r.cfg.Shards-r.res.Diverged)
	return nil
}

// wrong adds a violation.
func (r *chaos) wrong(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if len(r.res.Problems) < shownProblems {
		r.view.event("WRONG: %s", text)
	}
	r.res.Problems = append(r.res.Problems, text)
}

func totals(counts map[string]nemesis.Count) (tried, observed int) {
	for _, c := range counts {
		tried += c.Tried
		observed += c.Observed
	}
	return tried, observed
}
