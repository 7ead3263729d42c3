package chaos

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
	"github.com/rowraft/rowraft/e2e/check"
	"github.com/rowraft/rowraft/e2e/cluster"
	"github.com/rowraft/rowraft/e2e/history"
	"github.com/rowraft/rowraft/e2e/load"
	"github.com/rowraft/rowraft/e2e/nemesis"
	"github.com/rowraft/rowraft/e2e/replay"
	"github.com/rowraft/rowraft/e2e/verdict"
	"github.com/rowraft/rowraft/internal/cli"
)

// Files in the directory of a run.
const (
	ConfigFile = "config.json"
	eventsFile = "events.log"
	healthyDir = "checkpoints"
)

// ShownProblems is how many violations are shown; the others are in the result.
const ShownProblems = 30

// Durations of a run, and the least that it must do.
const (
	roundLength  = 30 * time.Second
	startLimit   = time.Minute
	finalLimit   = time.Minute
	pushPatience = 90 * time.Second // longer than any fault: after that a push counts as stuck

	streamedPerSecond = 1
)

// Run is a run in progress.
type Run struct {
	Config *Config
	Result *Result

	driver Driver
	system *System
	load   *load.Load
	rec    *history.Recorder
	world  *nemesis.World
	began  time.Time

	mu     sync.Mutex // of events: faults report concurrently
	events *os.File
}

// Start does a whole run; Judge completes its result. An error means that the run could not complete; violations are in
// the result. A run in virtual time is called in a bubble of testing/synctest.
func Start(ctx context.Context, cfg Config, d Driver) (*Result, error) {
	cfg.setDefaults()
	r := &Run{Config: &cfg, Result: &Result{}, driver: d, began: time.Now()}
	err := cli.WriteJSON(filepath.Join(cfg.Dir, ConfigFile), cfg)
	if err != nil {
		return nil, err
	}
	if r.events, err = os.Create(filepath.Join(cfg.Dir, eventsFile)); err != nil {
		return nil, err
	}
	defer r.events.Close()
	if r.rec, err = history.Create(filepath.Join(cfg.Dir, verdict.HistoryFile)); err != nil {
		return nil, err
	}
	err = r.withServers(ctx)
	r.Result.Took = time.Since(r.began)
	return r.Result, errors.Join(err, r.rec.Close())
}

// Event reports an event to the person who looks on.
func (r *Run) Event(format string, args ...any) {
	line := fmt.Sprintf("%8.2fs  %s", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
	r.mu.Lock()
	fmt.Fprintln(r.events, line)
	r.mu.Unlock()
	r.Config.Log(line)
}

// Wrong adds a violation.
func (r *Run) Wrong(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if len(r.Result.Problems) < ShownProblems {
		r.Event("WRONG: %s", text)
	}
	r.Result.Problems = append(r.Result.Problems, text)
}

// withServers runs the phases that need the servers.
func (r *Run) withServers(ctx context.Context) (err error) {
	if err := r.start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.end()) }()
	kinds, err := nemesis.Pick(r.Config.Faults, r.system.Machines != nil)
	if err != nil {
		return err
	}
	observer, _ := r.driver.(Observer)
	if observer != nil {
		if err := observer.BeforeFaults(ctx, r); err != nil {
			return err
		}
	}
	schedule := nemesis.NewSchedule(r.Config.Seed, kinds)
	end := time.Now().Add(r.Config.For)
	for time.Now().Before(end) && ctx.Err() == nil && len(r.Result.Problems) == 0 {
		until := time.Now().Add(roundLength)
		if end.Sub(until) < roundLength/2 {
			until = end
		}
		if err := r.round(ctx, schedule, until); err != nil {
			return err
		}
		r.Result.Rounds++
	}
	if observer != nil {
		observer.AfterFaults(ctx, r)
	}
	return context.Cause(ctx)
}

func (r *Run) start(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, errors.New("the cluster does not form"))
	defer cancel()
	healthy := filepath.Join(r.Config.Dir, healthyDir)
	if err := os.Mkdir(healthy, 0o755); err != nil {
		return err
	}
	s, err := r.driver.Start(ctx, r.Config, r.rec)
	if err != nil {
		return err
	}
	r.system = s
	r.load, err = load.New(ctx, load.Options{
		Endpoints: s.Endpoints, Dial: s.Dial, Clients: r.Config.Clients, Rows: r.Config.Rows, Seed: r.Config.Seed,
		PerSecond: r.Config.Rate, Recorder: r.rec, PushPatience: pushPatience,
	})
	if err != nil {
		s.Watch.Close()
		return errors.Join(err, s.Cluster.Close(), s.closeHung())
	}
	r.world = &nemesis.World{
		Cluster: s.Cluster, Net: s.Net, Watch: s.Watch, Machines: s.Machines, Hung: s.Hung, ShortLogBytes: s.ShortLogBytes,
		Load: r.load, Recorder: r.rec, Shards: r.Config.Shards, Checkpoints: healthy, Log: r.Event,
	}
	return nil
}

func (s *System) closeHung() error {
	if s.Hung == nil {
		return nil
	}
	return s.Hung.Close()
}

// end ends the load and the servers and collects what they have seen.
func (r *Run) end() error {
	r.system.Watch.Close()
	err := r.load.Close()
	if cerr := r.system.Cluster.Close(); cerr != nil {
		r.Wrong("servers do not stop: %v", cerr)
	}
	err = errors.Join(err, r.system.closeHung())
	refused, rerr := r.system.Cluster.WronglyRefused()
	if rerr != nil {
		r.Wrong("%v", rerr)
	}
	for _, p := range refused {
		r.Wrong("%s", p)
	}
	r.sum()
	seen := r.system.Watch.Seen()
	if observer, ok := r.driver.(Observer); ok {
		seen.Leads = append(seen.Leads, observer.AfterEnd(r)...)
	}
	return errors.Join(err, cli.WriteJSON(filepath.Join(r.Config.Dir, verdict.SeenFile), seen))
}

// round is a safety phase, the end of the faults, a liveness phase and final reads. The last faults of the
// safety phase stay until the heal.
func (r *Run) round(ctx context.Context, s *nemesis.Schedule, until time.Time) error {
	r.phase("safety")
	r.load.Start()
	shown, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	if r.Config.Progress != nil {
		wg.Go(func() { r.showProgress(shown) })
	}
	r.world.Run(ctx, s, until)
	heal, ended := r.world.Stand(ctx, s)
	stop()
	wg.Wait()
	r.phase("heal")
	healed := time.Now()
	heal()
	r.system.Net.Heal()
	r.phase("liveness")
	r.liveness(ctx, healed, ended)
	if err := r.quiesce(ctx); err != nil {
		r.Wrong("%v", err)
		return context.Cause(ctx)
	}
	r.phase("final")
	r.final(ctx)
	return nil
}

// quiesce ends the calls of the load; it can be started again.
func (r *Run) quiesce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, finalLimit)
	defer cancel()
	return r.load.Quiesce(ctx)
}

// WarmUp lets the clients run for a moment, without faults.
func (r *Run) WarmUp(ctx context.Context, d time.Duration) error {
	r.phase("warm-up")
	r.load.Start()
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return r.quiesce(ctx)
}

func (r *Run) phase(name string) {
	now := r.rec.Now()
	r.rec.Add(history.Op{Kind: history.Phase, Client: -1, Fault: name, Call: now, Return: now, Outcome: history.OK})
}

func (r *Run) showProgress(ctx context.Context) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c := r.load.Counts()
		tried, observed := Totals(r.world.Counts())
		r.Config.Progress(time.Since(r.began), fmt.Sprintf("%d acks  %d reads  %d faults, %d observed", c.Acks, c.Pulls,
			tried, observed))
	}
}

// liveness waits, after all faults have ended, until every shard accepts pushes, every client has a push
// acknowledged, every server serves and every replica has caught up.
func (r *Run) liveness(ctx context.Context, healed time.Time, ended <-chan struct{}) {
	limits, moment := r.driver.Limits(), r.rec.Now()
	r.load.Mark(moment)
	await := func(limit time.Duration, what string, try func() error) time.Duration {
		ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s %v after healing", what, limit))
		defer cancel()
		if err := cluster.Poll(ctx, try); err != nil {
			r.Wrong("liveness: %v", err)
		}
		return time.Since(healed)
	}
	var first []time.Duration
	await(limits.FirstPush, "some shard has no push acknowledged", func() error {
		first = r.load.FirstAcks()
		if shard := slices.Index(first, 0); shard >= 0 {
			return fmt.Errorf("none on shard %d", shard)
		}
		return nil
	})
	to := &r.Result.Recovery
	to.FirstPush.add(slices.DeleteFunc(first, func(d time.Duration) bool { return d == 0 })...)
	to.AllClients.add(await(limits.AllClients, "some client has no push acknowledged", func() error {
		if !r.load.Since(moment) {
			return errors.New("not acknowledged")
		}
		return nil
	}))
	to.Serving.add(await(limits.Serving, "a fault has not ended", func() error {
		select {
		case <-ended:
			return nil
		default:
			return errors.New("a server does not serve yet")
		}
	}))
	caught, cancel := context.WithTimeoutCause(ctx, limits.CatchUp,
		fmt.Errorf("a replica has not caught up %v after all servers serve", limits.CatchUp))
	defer cancel()
	if err := r.system.Cluster.CaughtUp(caught); err != nil {
		r.Wrong("liveness: %v", err)
	}
	to.CatchUp.add(time.Since(healed))
}

// final compares all rows with the acknowledged pushes, and all replicas with each other.
func (r *Run) final(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, finalLimit)
	defer cancel()
	f, err := r.load.Final(ctx)
	if err != nil {
		r.Wrong("%v", err)
		return
	}
	r.Result.Lost, r.Result.Doubled = f.Lost, f.Doubled // of all rounds: the counters are cumulative
	for _, d := range f.Details {
		r.Wrong("%s", d)
	}
	if err := r.system.Cluster.AwaitWhole(ctx, min(3, r.Config.Servers)); err != nil {
		r.Wrong("%v", err)
	}
	fenced, err := r.system.Cluster.Proved(ctx)
	if err != nil {
		r.Wrong("proof: %v", err)
	}
	for _, f := range fenced {
		r.Wrong("proof: %s", f)
	}
	var rows uint64
	for shard := range r.Config.Shards {
		rows += r.compare(ctx, rowraft.ShardID(shard))
	}
	if least, most := r.load.Rows(); (rows < uint64(least) || rows > uint64(most)) && len(r.Result.Problems) == 0 {
		r.Wrong("the shards hold %d rows, want %d to %d", rows, least, most)
	}
	for _, p := range r.system.Cluster.Dead() {
		r.Wrong("%s", p)
	}
	r.Event("round %d: %d pushes checked, %d updates lost, %d doubled, %d shards of one digest",
		r.Result.Rounds+1, r.load.Counts().Acks, f.Lost, f.Doubled, r.Config.Shards-r.Result.Diverged)
}

// compare compares the replicas of a shard and returns its number of rows.
func (r *Run) compare(ctx context.Context, shard rowraft.ShardID) uint64 {
	digests, err := r.system.Cluster.Digests(ctx, shard)
	if err != nil {
		r.Wrong("digests: %v", err)
		return 0
	}
	names := slices.Sorted(maps.Keys(digests))
	first := digests[names[0]]
	for _, name := range names[1:] {
		if digests[name] != first {
			r.Result.Diverged++
			r.Wrong("shard %d has diverged: %s holds %+v, %s %+v", shard, names[0], first, name, digests[name])
		}
	}
	if want := min(3, r.Config.Servers); len(names) != want {
		r.Wrong("shard %d has %d replicas, want %d", shard, len(names), want)
	}
	return first.Rows
}

// sum collects the observations of the run, and checks that the run did enough.
func (r *Run) sum() {
	c, res := r.load.Counts(), r.Result
	res.Acks, res.Pulls, res.Refused, res.Unknown = c.Acks, c.Pulls, c.Refused, c.Unknown
	res.Reused = c.Reused
	res.Pushes = c.Acks + c.Refused + c.Unknown
	res.Gap = r.load.LongestGap().Seconds()
	res.Faults = r.world.Counts()
	res.Tried, res.Observed = Totals(res.Faults)
	for _, p := range slices.Concat(r.world.Problems(), r.load.Problems()) {
		r.Wrong("%s", p)
	}
	if len(res.Problems) > 0 {
		return // an interrupted run has done little
	}
	for _, k := range slices.Sorted(maps.Keys(res.Faults)) {
		if n := res.Faults[k]; n.Idle() {
			r.Wrong("fault %s was tried %d times and never had an effect", k, n.Tried)
		}
	}
	seconds := r.Config.For.Seconds()
	if least := int64(streamedPerSecond * seconds); c.Streamed < least {
		r.Wrong("too little happened: %d pushes to the table for streaming ids, want %d", c.Streamed, least)
	}
	if least := int64(r.driver.Limits().AcksPerSecond * seconds); c.Acks < least {
		r.Wrong("too little happened: %d pushes acknowledged, want %d", c.Acks, least)
	}
	if c.Reused == 0 {
		r.Wrong("too little happened: no row was read from a copy")
	}
	if least := int(nemesis.MinPerMinute(r.Config.Faults) * r.Config.For.Minutes()); res.Observed < least {
		r.Wrong("too little happened: %d faults observed, want %d", res.Observed, least)
	}
	if c.Unknown > 0 {
		r.Wrong("%d pushes ended with an unknown outcome: clients must retry until they know", c.Unknown)
	}
}

// Judge checks the records of a run with every checker and adds the violations. It must be called outside a bubble: the
// checkers measure time.
func (res *Result) Judge(cfg Config) error {
	cfg.setDefaults()
	ops, seen, err := verdict.Read(cfg.Dir)
	if err != nil {
		return err
	}
	res.Checked, res.Terms = len(ops), verdict.Terms(seen.Leads)
	var t check.Tally
	t, res.Verdicts = verdict.Judge(ops, seen, cfg.Clients, cfg.For)
	res.Lost, res.Doubled = max(res.Lost, t.Lost), max(res.Doubled, t.Doubled)
	replayed, err := replay.OfRun(cfg.Dir, cfg.Shards, rowraft.SlotCount(cfg.Slots), ops, seen)
	if err != nil {
		return err
	}
	res.Verdicts = append(res.Verdicts, replayed)
	for _, v := range res.Verdicts {
		for _, p := range v.Wrong {
			res.Problems = append(res.Problems, v.Checker+": "+p)
		}
	}
	return nil
}
