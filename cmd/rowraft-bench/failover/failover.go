package failover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rowraft/rowraft/cmd/rowraft-bench/scaffold"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/localcluster"
)

// The longest times that a failover may take. docs/ops promises them for profile fast and a light load.
const (
	killP50Bar     = 150 * time.Millisecond
	killP90Bar     = 400 * time.Millisecond
	transferP90Bar = 500 * time.Millisecond
	plannedMaxBar  = 500 * time.Millisecond // moves and restarts
	stallMaxBar    = 2 * time.Second
	nodeMaxBar     = time.Second
	readShareBar   = 0.999
)

const (
	// failoverMaxAge is the bound of the reads during the faults. A read without an answer
	// after failoverReadLimit counts as not served.
	failoverMaxAge    = 10 * time.Second
	failoverReadLimit = time.Second
	// failoverNodeShards is the number of shards of the cluster in which a server that leads a
	// third of them is killed.
	failoverNodeShards = 12
)

// Config is what to measure.
type Config struct {
	Own  scaffold.Servers // 3 of them
	Seed uint64           // of the moments of the faults

	// How often: the leader is killed, the lead is handed over, the leader's disk hangs, a server that leads a third of
	// the shards is killed, the leader's replica moves, all servers restart in turn.
	Kills, Transfers, Stalls, Servers int
	Moves, Restarts                   int

	StallLimit time.Duration // --disk-stall-limit of the servers; 0: that of the profile
	still      bool          // the scheduler moves no replica by itself
}

// Result is the JSON of `bench failover`; the field names are a contract.
type Result struct {
	Schema string `json:"schema"`
	Op     string `json:"op"`

	// Faults are measured from the fault to the first acknowledged push that began after it, in
	// the shard that the server led; Servers in the last of the shards that it led. Planned changes
	// are measured by the longest time without an acknowledgement in any shard.
	Kills     *failoverTimes `json:"kills,omitempty"`
	Transfers *plannedGaps   `json:"transfers,omitempty"`
	Moves     *plannedGaps   `json:"moves,omitempty"`    // the leader's replica moves
	Restarts  *plannedGaps   `json:"restarts,omitempty"` // SIGTERM, one server after the other
	Stalls    *failoverTimes `json:"disk_stalls,omitempty"`
	Servers   *failoverTimes `json:"servers,omitempty"`

	Reads *failoverReads `json:"bounded_reads"`

	scaffold.Bars
	Skipped []string `json:"skipped,omitempty"` // faults that could not be measured, each with its reason

	// Gone are servers that ended without a fault of the run, for example because of a disk that
	// others on this machine kept busy. They were started again.
	Gone int `json:"servers_gone"`

	Replicas int    `json:"replicas"`
	Backend  string `json:"log_backend"`
	Profile  string `json:"profile"`
	Pushes   int64  `json:"pushes"`
	scaffold.BusyHost
}

// failoverTimes are the times of one kind of fault, in seconds.
type failoverTimes struct {
	N   int       `json:"n"`
	P50 float64   `json:"p50_seconds"`
	P90 float64   `json:"p90_seconds"`
	P99 float64   `json:"p99_seconds"`
	Max float64   `json:"max_seconds"`
	All []float64 `json:"all_seconds"` // in the order of the faults
}

func timesOf(all []time.Duration) *failoverTimes {
	if len(all) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(all))
	at := func(p float64) float64 {
		// The smallest time that a share p of all does not exceed.
		i := int(p*float64(len(sorted))+0.999999) - 1
		return sorted[min(max(i, 0), len(sorted)-1)].Seconds()
	}
	t := &failoverTimes{N: len(all), P50: at(0.5), P90: at(0.9), P99: at(0.99), Max: at(1)}
	for _, d := range all {
		t.All = append(t.All, d.Seconds())
	}
	return t
}

// failoverReads are the bounded reads during all faults.
type failoverReads struct {
	MaxAge  float64 `json:"max_age_seconds"`
	Reads   int64   `json:"reads"`
	Served  int64   `json:"served"`
	Share   float64 `json:"served_share"`
	Oldest  float64 `json:"oldest_seconds"`  // greatest age of the rows of a read
	Slowest float64 `json:"slowest_seconds"` // the slowest read that was served
	Error   string  `json:"first_error,omitempty"`
}

// Measure disturbs clusters of its own under a light load.
func Measure(ctx context.Context, cfg Config, progress io.Writer) (r *Result, err error) {
	f := &cfg
	switch {
	case cfg.Own.Number != 3:
		return nil, cli.Usagef("bench failover --replicas %d: want 3", cfg.Own.Number)
	case min(f.Kills, f.Transfers, f.Stalls, f.Servers, f.Moves, f.Restarts) < 0 ||
		max(f.Kills, f.Transfers, f.Stalls, f.Servers, f.Moves, f.Restarts) == 0:
		return nil,
			cli.Usagef(
				"--kills %d, --transfers %d, --moves %d, --restarts %d, --stalls %d, --servers %d: want 0 or more, and one of them",
				f.Kills, f.Transfers, f.Moves, f.Restarts, f.Stalls, f.Servers)
	}
	r = &Result{
		Schema: cli.JSONSchema, Op: "failover", Replicas: cfg.Own.Number, Backend: cfg.Own.Backend, Profile: cfg.Own.Profile,
		BusyHost: scaffold.BusyHost{Host: scaffold.ThisHost()},
	}
	r.Load[0] = scaffold.MachineLoad()
	reads := &readTally{}
	if f.Kills+f.Transfers+f.Stalls > 0 {
		cfg.Own.Shards = 1
		if err := r.onCluster(ctx, cfg, reads, progress,
			func(d *disturber) error { return r.oneShard(ctx, f, d) }); err != nil {
			return nil, err
		}
	}
	if f.Restarts > 0 {
		cfg.Own.Shards = plannedShards
		if err := r.onCluster(ctx, cfg, reads, progress, func(d *disturber) (err error) {
			r.Restarts, err = d.repeatPlanned(ctx, "restart", f.Restarts, d.rollingRestart)
			return err
		}); err != nil {
			return nil, err
		}
	}
	if f.Moves > 0 {
		cfg.Own.Shards, cfg.Own.Number, cfg.still = 1, r.Replicas+1, true
		if err := r.onCluster(ctx, cfg, reads, progress, func(d *disturber) (err error) {
			r.Moves, err = d.repeatPlanned(ctx, "move", f.Moves, d.move)
			return err
		}); err != nil {
			return nil, err
		}
		cfg.Own.Number, cfg.still = r.Replicas, false
	}
	if f.Servers > 0 {
		cfg.Own.Shards = failoverNodeShards
		if err := r.onCluster(ctx, cfg, reads, progress,
			func(d *disturber) error { return r.manyShards(ctx, f, d) }); err != nil {
			return nil, err
		}
	}
	r.Reads = reads.result()
	r.Load[1] = scaffold.MachineLoad()
	r.judge()
	return r, nil
}

// onCluster calls faults with a cluster of its own under load, and adds to r the pushes and the servers that ended.
func (r *Result) onCluster(ctx context.Context, cfg Config, reads *readTally, progress io.Writer,
	faults func(*disturber) error) (err error) {
	d, err := newDisturber(ctx, cfg, reads, progress)
	if err != nil {
		return err
	}
	defer func() {
		r.Pushes += d.load.pushes.Load()
		r.Gone += d.gone
		err = errors.Join(err, d.close())
	}()
	return faults(d)
}

// oneShard disturbs the leader of a cluster of one shard.
func (r *Result) oneShard(ctx context.Context, f *Config, d *disturber) error {
	stalls := f.Stalls
	if stalls > 0 && !d.stalls {
		r.Skipped = append(r.Skipped,
			"disk stalls: there is no rowraft-faults, whose disk can be told to hang; `make build-faults` builds it")
		stalls = 0
	}
	kills, err := d.repeat(ctx, "kill −9", f.Kills, d.kill)
	if err != nil {
		return err
	}
	r.Transfers, err = d.repeatPlanned(ctx, "transfer", f.Transfers, d.handOver)
	if err != nil {
		return err
	}
	stalled, err := d.repeat(ctx, "disk stall", stalls, d.stall)
	if err != nil {
		return err
	}
	r.Kills, r.Stalls = timesOf(kills), timesOf(stalled)
	return nil
}

// manyShards kills servers that lead a third of the shards.
func (r *Result) manyShards(ctx context.Context, f *Config, d *disturber) error {
	servers, err := d.repeat(ctx, "kill −9 of a server that leads a third", f.Servers, d.killNode)
	if err != nil {
		return err
	}
	r.Servers = timesOf(servers)
	return nil
}

// judge holds the figures against their bars.
func (r *Result) judge() {
	over := func(what string, t *failoverTimes, figure func(*failoverTimes) float64, bar time.Duration) {
		if t != nil && figure(t) > bar.Seconds() {
			r.Miss("%s: %.2f s, the bar is %.2f s", what, figure(t), bar.Seconds())
		}
	}
	p50 := func(t *failoverTimes) float64 { return t.P50 }
	p90 := func(t *failoverTimes) float64 { return t.P90 }
	most := func(t *failoverTimes) float64 { return t.Max }
	over("kills, p50", r.Kills, p50, killP50Bar)
	over("kills, p90", r.Kills, p90, killP90Bar)
	over("transfers, p90", r.Transfers.times(), p90, transferP90Bar)
	over("moves, max", r.Moves.times(), most, plannedMaxBar)
	over("restarts, max", r.Restarts.times(), most, plannedMaxBar)
	over("disk stalls, max", r.Stalls, most, stallMaxBar)
	over("servers that lead a third, max", r.Servers, most, nodeMaxBar)
	if r.Reads.Share < readShareBar {
		r.Miss("bounded reads: %.4f of them were served, the bar is %.3f (first error: %s)", r.Reads.Share, readShareBar,
			r.Reads.Error)
	}
	r.Passed = len(r.Failed) == 0
}

func (r *Result) Print(w io.Writer) error {
	line := func(t *failoverTimes) string {
		return fmt.Sprintf("p50 %.3f s, p90 %.3f s, p99 %.3f s, max %.3f s (n = %d)", t.P50, t.P90, t.P99, t.Max, t.N)
	}
	var pairs []string
	for _, k := range []struct {
		name string
		t    *failoverTimes
	}{{"kill −9", r.Kills}, {"transfer", r.Transfers.times()}, {"move", r.Moves.times()},
		{"restart", r.Restarts.times()}, {"disk stall", r.Stalls},
		{"a third of " + cli.Plural(failoverNodeShards, "shard"), r.Servers}} {
		if k.t != nil {
			pairs = append(pairs, k.name, line(k.t))
		}
	}
	served := fmt.Sprintf("%s of %s bounded reads (%.4f %%), max age %.0f s; oldest %.2f s, slowest %.3f s",
		cli.Count(uint64(r.Reads.Served)), cli.Count(uint64(r.Reads.Reads)), 100*r.Reads.Share, r.Reads.MaxAge,
		r.Reads.Oldest, r.Reads.Slowest)
	verdict := "all bars are met"
	if !r.Passed {
		verdict = "ABOVE THE BAR: " + strings.Join(r.Failed, "; ")
	}
	pairs = append(pairs, "served", served, "verdict", verdict)
	if r.Gone > 0 {
		pairs = append(pairs, "gone", cli.Plural(r.Gone,
			"server")+" ended by themselves and were started again: the machine's disk is busy")
	}
	for _, s := range r.Skipped {
		pairs = append(pairs, "skipped", s)
	}
	if err := cli.Facts(w, append(pairs,
		"servers", fmt.Sprintf("%s, profile %s, log %s; %s acknowledged", cli.Plural(r.Replicas, "replica"), r.Profile,
			r.Backend, cli.Count(uint64(r.Pushes))+" pushes"),
		"machine", r.BusyHost.String())...); err != nil {
		return err
	}
	return r.printWorst(w)
}

// printWorst prints the events of the longest gap of each kind of planned change.
func (r *Result) printWorst(w io.Writer) error {
	for _, k := range []struct {
		name string
		p    *plannedGaps
	}{{"transfer", r.Transfers}, {"move", r.Moves}, {"restart", r.Restarts}} {
		if k.p == nil || k.p.Worst == nil {
			continue
		}
		g, p := k.p.Worst, &k.p.Worst.Phases
		_, err := fmt.Fprintf(w, "\nThe longest gap of a %s, %.3f s in shard %d: %.3f s until the lead is handed over, "+
			"%.3f s until another server is elected, %.3f s until it serves, %.3f s until a push is acknowledged\n",
			k.name, g.Seconds, g.Shard, p.Before, p.Transfer, p.Begin, p.Found)
		if err != nil {
			return err
		}
		for _, e := range g.Events {
			if _, err := fmt.Fprintln(w, " ", e); err != nil {
				return err
			}
		}
	}
	return nil
}

// diskStallFile follows a server's name.
const diskStallFile = ".disk.json"

func stallFile(s *localcluster.Server) string {
	return filepath.Join(filepath.Dir(s.DataDir), s.Name+diskStallFile)
}

// setDiskStall makes all writes to the disk of a rowraft-faults that reads the file hang, or lets them go on.
func setDiskStall(file string, hang bool) error {
	faults := "[]"
	if hang {
		faults = `[{"name": "stall", "hang": true}]`
	}
	if err := os.WriteFile(file+".new", []byte(faults), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}
