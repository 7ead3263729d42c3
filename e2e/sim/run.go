package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/e2e/check"
	"github.com/rowraft/rowraft/e2e/cluster"
	"github.com/rowraft/rowraft/e2e/history"
	"github.com/rowraft/rowraft/e2e/load"
	"github.com/rowraft/rowraft/e2e/nemesis"
	"github.com/rowraft/rowraft/e2e/replay"
	"github.com/rowraft/rowraft/e2e/verdict"
)

// Files in the directory of a run, as rowraft-chaos check expects them.
const (
	configFile  = "config.json"
	historyFile = verdict.HistoryFile
	seenFile    = verdict.SeenFile
	eventsFile  = "events.log"
)

// Config is what a run is made from. Zero values mean the defaults named.
type Config struct {
	Tier    string        `json:"tier"` // always "A"
	Seed    uint64        `json:"seed"`
	For     time.Duration `json:"for_ns"`  // of faults, in virtual time: 1 min
	Faults  string        `json:"faults"`  // "all", or kinds separated by commas
	Clients int           `json:"clients"` // 4
	Rows    int           `json:"rows"`    // 8
	Servers int           `json:"servers"` // 3
	Shards  int           `json:"shards"`  // 2
	Rate    int           `json:"rate"`    // calls a second of each client: 20
	Profile string        `json:"profile"` // of the raft timers: "fast"
	Backend string        `json:"backend"` // of the logs; "": the node's default

	Dir string `json:"-"` // empty directory for data, logs and history
	// Log receives a line for a person; may be nil.
	Log func(format string, args ...any) `json:"-"`
}

func (c *Config) setDefaults() {
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set(&c.Clients, 4)
	set(&c.Rows, 8)
	set(&c.Servers, 3)
	set(&c.Shards, 2)
	set(&c.Rate, 20)
	c.Tier = "A"
	if c.For == 0 {
		c.For = time.Minute
	}
	if c.Faults == "" {
		c.Faults = "all"
	}
	if c.Profile == "" {
		c.Profile = "fast"
	}
	if c.Log == nil {
		c.Log = func(string, ...any) {}
	}
}

// Result is what a run has done and found.
type Result struct {
	Virtual  time.Duration            `json:"virtual_ns"`
	Rounds   int                      `json:"rounds"`
	Faults   map[string]nemesis.Count `json:"faults"`
	Acks     int64                    `json:"acks"`
	Pulls    int64                    `json:"pulls"`
	Refused  int64                    `json:"refused"`
	Unknown  int64                    `json:"unknown"`
	Lost     int64                    `json:"updates_lost"`
	Doubled  int64                    `json:"updates_doubled"`
	Diverged int                      `json:"shards_diverged"`
	Terms    int                      `json:"terms"`
	// After the heal, by round: a push called after it was acknowledged (by shard), one
	// of every client, every replica had caught up, every server served.
	FirstPush  []time.Duration   `json:"first_push_of_shard_ns"`
	AllClients []time.Duration   `json:"push_of_every_client_ns"`
	CatchUp    []time.Duration   `json:"replicas_caught_up_ns"`
	Serving    []time.Duration   `json:"servers_serve_ns"`
	Gap        time.Duration     `json:"longest_time_without_ack_ns"`
	Checked    int               `json:"operations_checked"`
	Verdicts   []verdict.Verdict `json:"checks"`
	Problems   []string          `json:"violations"`
}

// Bounds of the liveness phase, and what counts as too little.
const (
	roundLength    = 30 * time.Second
	startLimit     = time.Minute
	firstPushLimit = 10 * time.Second
	allPushesLimit = 20 * time.Second
	catchUpLimit   = 30 * time.Second
	servingLimit   = 40 * time.Second
	finalLimit     = time.Minute
	pushPatience   = 90 * time.Second // longer than any fault: then a push is stuck

	minAcksPerSecond = 5
)

// runner is a run in progress.
type runner struct {
	cfg     *Config
	res     *Result
	cluster *Cluster
	load    *load.Load
	rec     *history.Recorder
	world   *nemesis.World
	events  *os.File
	began   time.Time
}

// Run does a whole run. It must be called in a bubble of testing/synctest, which
// ends clean after it; Judge completes the result. The error is why it could not go
// through; what it found wrong stands in the result.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	cfg.setDefaults()
	r := &runner{cfg: &cfg, res: &Result{}, began: time.Now()}
	err := writeJSON(filepath.Join(cfg.Dir, configFile), cfg)
	if err != nil {
		return nil, err
	}
	if r.events, err = os.Create(filepath.Join(cfg.Dir, eventsFile)); err != nil {
		return nil, err
	}
	defer r.events.Close()
	if r.rec, err = history.Create(filepath.Join(cfg.Dir, historyFile)); err != nil {
		return nil, err
	}
	err = r.withCluster(ctx)
	if err := errors.Join(err, r.rec.Close()); err != nil {
		return r.res, err
	}
	r.res.Virtual = time.Since(r.began)
	return r.res, nil
}

func (r *runner) event(format string, args ...any) {
	line := fmt.Sprintf("%8.2fs  %s", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
	fmt.Fprintln(r.events, line)
	r.cfg.Log("%s", line)
}

// wrong adds a violation.
func (r *runner) wrong(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.event("WRONG: %s", text)
	r.res.Problems = append(r.res.Problems, text)
}

func (r *runner) withCluster(ctx context.Context) (err error) {
	if err := r.start(ctx); err != nil {
		return err
	}
	defer func() {
		if cerr := r.load.Close(); cerr != nil {
			err = errors.Join(err, cerr)
		}
		if cerr := r.cluster.Close(); cerr != nil {
			r.wrong("the cluster does not stop: %v", cerr)
		}
		refused, rerr := r.cluster.WronglyRefused()
		if rerr != nil {
			r.wrong("%v", rerr)
		}
		for _, p := range refused {
			r.wrong("%s", p)
		}
		r.sum()
		err = errors.Join(err, writeJSON(filepath.Join(r.cfg.Dir, seenFile), r.cluster.Watch.Seen()))
	}()
	r.cluster.Watch.Sample(r.cluster.Admins, r.cfg.Shards)
	kinds, err := nemesis.Pick(r.cfg.Faults, true)
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
	return context.Cause(ctx)
}

func (r *runner) start(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, errors.New("the cluster does not form"))
	defer cancel()
	r.cluster, err = Start(ctx, Options{
		Dir: r.cfg.Dir, Servers: r.cfg.Servers, Shards: r.cfg.Shards, Profile: r.cfg.Profile, Backend: r.cfg.Backend,
		DiskStallLimit: 2 * time.Second,
		// Snapshots all the time, and replicas that need them.
		SnapshotEveryBytes: 20_000, TrailingLogBytes: 5_000, LogSegmentBytes: 64 << 10,
	})
	if err != nil {
		return err
	}
	r.load, err = load.New(ctx, load.Options{
		Endpoints: r.cluster.Endpoints(), Dial: r.cluster.DialClient, Clients: r.cfg.Clients, Rows: r.cfg.Rows, Seed: r.cfg.Seed,
		PerSecond: r.cfg.Rate, Recorder: r.rec, PushPatience: pushPatience,
	})
	if err != nil {
		return errors.Join(err, r.cluster.Close())
	}
	healthy := filepath.Join(r.cfg.Dir, "checkpoints")
	if err := os.Mkdir(healthy, 0o755); err != nil {
		return errors.Join(err, r.load.Close(), r.cluster.Close())
	}
	r.world = &nemesis.World{
		Cluster: r.cluster, Net: r.cluster.Net, Watch: r.cluster.Watch, Machines: r.cluster, Load: r.load, Recorder: r.rec, Shards: r.cfg.Shards, Log: r.event,
		Checkpoints: healthy,
	}
	return nil
}

// round is a safety phase, healing, liveness, final reads. The last faults of the
// safety phase stand until the heal.
func (r *runner) round(ctx context.Context, s *nemesis.Schedule, until time.Time) error {
	r.phase("safety")
	r.load.Start()
	r.world.Run(ctx, s, until)
	heal, ended := r.world.Stand(ctx, s)
	r.phase("heal")
	heal()
	r.cluster.Net.Heal()
	r.phase("liveness")
	r.liveness(ctx, ended)
	quiet, cancel := context.WithTimeout(ctx, finalLimit)
	defer cancel()
	if err := r.load.Quiesce(quiet); err != nil {
		r.wrong("%v", err)
		return context.Cause(ctx)
	}
	r.phase("final")
	r.final(ctx)
	return nil
}

func (r *runner) phase(name string) {
	now := r.rec.Now()
	r.rec.Add(history.Op{Kind: history.Phase, Client: -1, Fault: name, Call: now, Return: now, Outcome: history.OK})
}

// liveness waits, everything being healed, until every shard takes pushes, every
// client gets through, every replica has caught up and every server serves.
func (r *runner) liveness(ctx context.Context, ended <-chan struct{}) {
	healed, moment := time.Now(), r.rec.Now()
	r.load.Mark(moment)
	await := func(limit time.Duration, what string, try func() error) time.Duration {
		ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s %v after healing", what, limit))
		defer cancel()
		if err := cluster.Poll(ctx, try); err != nil {
			r.wrong("liveness: %v", err)
		}
		return time.Since(healed)
	}
	var first []time.Duration
	await(firstPushLimit, "some shard has no push acknowledged", func() error {
		first = r.load.FirstAcks()
		if shard := slices.Index(first, 0); shard >= 0 {
			return fmt.Errorf("none on shard %d", shard)
		}
		return nil
	})
	r.res.FirstPush = append(r.res.FirstPush, slices.DeleteFunc(first, func(d time.Duration) bool { return d == 0 })...)
	r.res.AllClients = append(r.res.AllClients, await(allPushesLimit, "some client has no push acknowledged", func() error {
		if !r.load.Since(moment) {
			return errors.New("not acknowledged")
		}
		return nil
	}))
	r.res.Serving = append(r.res.Serving, await(servingLimit, "a fault has not ended", func() error {
		select {
		case <-ended:
			return nil
		default:
			return errors.New("a server is not back")
		}
	}))
	caught, cancel := context.WithTimeoutCause(ctx, catchUpLimit, fmt.Errorf("a replica has not caught up %v after healing", catchUpLimit))
	defer cancel()
	if err := r.cluster.CaughtUp(caught); err != nil {
		r.wrong("liveness: %v", err)
	}
	r.res.CatchUp = append(r.res.CatchUp, time.Since(healed))
}

// final compares all rows with what was acknowledged, and all replicas.
func (r *runner) final(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, finalLimit)
	defer cancel()
	f, err := r.load.Final(ctx)
	if err != nil {
		r.wrong("%v", err)
		return
	}
	r.res.Lost, r.res.Doubled = f.Lost, f.Doubled // of all rounds: counts go on
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
	var rows uint64
	for shard := range r.cfg.Shards {
		rows += r.compare(ctx, rowraft.ShardID(shard))
	}
	if least, most := r.load.Rows(); (rows < uint64(least) || rows > uint64(most)) && len(r.res.Problems) == 0 {
		r.wrong("the shards hold %d rows, want %d to %d", rows, least, most)
	}
	for _, p := range r.cluster.Dead() {
		r.wrong("%s", p)
	}
}

// compare looks at all replicas of a shard and returns its number of rows.
func (r *runner) compare(ctx context.Context, shard rowraft.ShardID) uint64 {
	digests, err := r.cluster.Digests(ctx, shard)
	if err != nil {
		r.wrong("digests: %v", err)
		return 0
	}
	names := slices.Sorted(maps.Keys(digests))
	first := digests[names[0]]
	for _, name := range names[1:] {
		if digests[name] != first {
			r.res.Diverged++
			r.wrong("shard %d has diverged: %s holds %+v, %s %+v", shard, names[0], first, name, digests[name])
		}
	}
	if want := min(3, r.cfg.Servers); len(names) != want {
		r.wrong("shard %d has %d replicas, want %d", shard, len(names), want)
	}
	return first.Rows
}

// sum collects what the run has seen, and whether that was enough.
func (r *runner) sum() {
	c := r.load.Counts()
	r.res.Acks, r.res.Pulls, r.res.Refused, r.res.Unknown = c.Acks, c.Pulls, c.Refused, c.Unknown
	r.res.Gap = r.load.LongestGap()
	r.res.Faults = r.world.Counts()
	r.res.Terms = verdict.Terms(r.cluster.Watch.Seen().Leads)
	for _, p := range slices.Concat(r.world.Problems(), r.load.Problems()) {
		r.wrong("%s", p)
	}
	if len(r.res.Problems) > 0 {
		return // a run cut short has done little
	}
	observed := 0
	for _, k := range slices.Sorted(maps.Keys(r.res.Faults)) {
		n := r.res.Faults[k]
		observed += n.Observed
		if n.Idle() {
			r.wrong("fault %s was tried %d times and never had an effect", k, n.Tried)
		}
	}
	if least := int64(r.cfg.For.Seconds()); c.Streamed < least {
		r.wrong("%d pushes to the table for streaming ids, want %d at least", c.Streamed, least)
	}
	if least := int64(minAcksPerSecond * r.cfg.For.Seconds()); c.Acks < least {
		r.wrong("too little happened: %d pushes acknowledged, want %d", c.Acks, least)
	}
	if least := int(nemesis.MinPerMinute(r.cfg.Faults) * r.cfg.For.Minutes()); observed < least {
		r.wrong("too little happened: %d faults observed, want %d", observed, least)
	}
	if c.Unknown > 0 {
		r.wrong("%d pushes ended with an unknown outcome: clients must retry until they know", c.Unknown)
	}
}

// Judge asks every checker about what Run has recorded in dir and adds what they say.
// It needs time that passes: call it outside the bubble.
func (res *Result) Judge(cfg Config) error {
	cfg.setDefaults()
	ops, seen, err := verdict.Read(cfg.Dir)
	if err != nil {
		return err
	}
	res.Checked = len(ops)
	var t check.Tally
	t, res.Verdicts = verdict.Judge(ops, seen, cfg.Clients, cfg.For)
	res.Lost, res.Doubled = max(res.Lost, t.Lost), max(res.Doubled, t.Doubled)
	replayed, err := replay.OfRun(cfg.Dir, cfg.Shards, ops, seen)
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

func writeJSON(path string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o644)
}
