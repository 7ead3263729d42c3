package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/rowraft/rowraft/cmd/rowraft-bench/scaffold"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/localcluster"
)

// restartBar is the longest time in which a server of 5 M rows may return.
const restartBar = 10 * time.Second

// restartResult is the JSON of `bench restart`; the field names are a contract.
type restartResult struct {
	Schema string `json:"schema"`
	Op     string `json:"op"`

	Ready    float64 `json:"ready_seconds"`     // until it reports that it serves
	CaughtUp float64 `json:"caught_up_seconds"` // until its replicas have applied what the leaders had at the kill
	CPU      float64 `json:"server_cpu_seconds"`
	Bar      float64 `json:"bar_seconds"`
	Passed   bool    `json:"passed"`

	SnapshotBytes int64  `json:"snapshot_bytes"` // on its disk when it was killed, as
	LogBytes      uint64 `json:"log_bytes"`      // the log of all its replicas
	Rows          uint64 `json:"rows_of_the_server"`

	Killed    string  `json:"killed"`
	Dim       int     `json:"dim"`
	Memory    string  `json:"table_memory"` // of a tiered table; "": all rows are in memory
	Optimizer string  `json:"optimizer"`
	Pushed    float64 `json:"seconds_of_pushes_before"`
	Away      float64 `json:"seconds_of_pushes_without_it"`
	RowsAway  float64 `json:"rows_pushed_without_it"`
	Replicas  int     `json:"replicas"`
	Shards    int     `json:"shards"`
	Backend   string  `json:"log_backend"`
	scaffold.Host
}

// benchRestart loads a cluster of its own, kills one server or all of them, and
// measures how long the first one takes to be back.
func benchRestart(ctx context.Context, cfg benchConfig, progress io.Writer) (r *restartResult, err error) {
	if cfg.kill != "one" && cfg.kill != "all" {
		return nil, cli.Usagef("--kill %q: want one or all", cfg.kill)
	}
	if cfg.away < 0 || cfg.away > 0 && (cfg.kill != "one" || cfg.replicas < 3) {
		return nil, cli.Usagef("--away %g: want 0, or seconds with --kill one and 3 replicas", cfg.away)
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cluster, cleanup, err := benchCluster(ctx, &cfg, progress)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cleanup()) }()
	if _, err := restartPushes(ctx, cfg, cluster, true, progress); err != nil {
		return nil, err
	}
	want, err := scaffold.AppliedOf(ctx, cluster.Servers())
	if err != nil {
		return nil, err
	}
	victim := cluster.Servers()[0] // the one that is profiled
	st, err := localcluster.Status(ctx, victim.Addr)
	if err != nil {
		return nil, err
	}
	r = &restartResult{
		Schema: cli.JSONSchema, Op: "restart", Bar: restartBar.Seconds(), Killed: cfg.kill, Dim: cfg.dim, Memory: cfg.memory,
		Optimizer: cfg.optimizer, Pushed: cfg.seconds, Away: cfg.away,
		Replicas: cfg.replicas, Shards: len(st.Replicas), Backend: cfg.backend, Host: scaffold.ThisHost(),
	}
	for _, rep := range st.Replicas {
		r.Rows += rep.Rows
		r.LogBytes += rep.LogBytes
	}
	killed := []*localcluster.Server{victim}
	if cfg.kill == "all" {
		killed = cluster.Servers()
	}
	for _, s := range killed {
		if err := s.Kill(); err != nil {
			return nil, err
		}
	}
	if r.SnapshotBytes, err = snapshotBytes(victim.DataDir); err != nil {
		return nil, err
	}
	fmt.Fprintf(progress, "killed %s; its snapshots take %s, its logs %s\n",
		cfg.kill, humanize.IBytes(uint64(r.SnapshotBytes)), humanize.IBytes(r.LogBytes))
	if cfg.away > 0 {
		cfg.seconds = cfg.away
		if r.RowsAway, err = restartPushes(ctx, cfg, cluster, false, progress); err != nil {
			return nil, err
		}
		if want, err = scaffold.AppliedOf(ctx, cluster.Servers()[1:]); err != nil {
			return nil, err
		}
	}
	fmt.Fprintln(progress, "starting again …")
	return r, r.measure(ctx, cluster, victim, killed, want)
}

// restartPushes pushes for a while, with load all rows before that, and hangs up. It returns the number of rows that it
// pushed in that while.
func restartPushes(ctx context.Context, cfg benchConfig, cluster *localcluster.Cluster, load bool,
	progress io.Writer) (float64, error) {
	cfg.endpoints, cfg.op = cluster.Endpoints(), "push"
	workers, err := benchWorkers(ctx, cfg)
	if err != nil {
		return 0, err
	}
	defer closeWorkers(workers)
	if load {
		if err := benchLoad(ctx, cfg, workers, progress); err != nil {
			return 0, err
		}
	}
	fmt.Fprintf(progress, "pushing for %gs …\n", cfg.seconds)
	times, err := measure(ctx, cfg, workers, cfg.seconds)
	return float64(times.TotalCount()) * float64(cfg.batch), err
}

// measure starts the killed servers and waits until victim has applied the indexes of want.
func (r *restartResult) measure(ctx context.Context, cluster *localcluster.Cluster, victim *localcluster.Server,
	killed []*localcluster.Server, want map[uint32]uint64) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	start := time.Now()
	ready := make(chan error, len(killed))
	for _, s := range killed {
		go func() {
			err := cluster.Restart(ctx, s)
			if s == victim {
				r.Ready = time.Since(start).Seconds()
			}
			ready <- err
		}()
	}
	var errs []error
	for range killed {
		errs = append(errs, <-ready)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		st, err := localcluster.Status(ctx, victim.Addr)
		if err != nil {
			return err
		}
		behind := len(want)
		for _, rep := range st.Replicas {
			if rep.AppliedIndex >= want[rep.Shard] {
				behind--
			}
		}
		if behind == 0 {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	r.CaughtUp = time.Since(start).Seconds()
	r.CPU = processCPU(victim.Pid())
	r.Passed = r.CaughtUp <= r.Bar
	return nil
}

// snapshotBytes returns the size of the newest whole snapshots of a data directory.
func snapshotBytes(dir string) (sum int64, err error) {
	newest := make(map[string]int64) // by group; names sort by index
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Name() != "data" || strings.HasSuffix(filepath.Dir(path), ".tmp") {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		newest[filepath.Dir(filepath.Dir(path))] = info.Size()
		return err
	})
	for _, n := range newest {
		sum += n
	}
	return sum, err
}

func (r *restartResult) Print(w io.Writer) error {
	verdict := "within the bar"
	if !r.Passed {
		verdict = "ABOVE THE BAR"
	}
	memory := ""
	if r.Memory != "" {
		memory = ", " + r.Memory + " of memory"
	}
	away := "no pushes"
	if r.Away > 0 {
		away = fmt.Sprintf("%.0f s, in which %s rows were pushed", r.Away, cli.Count(uint64(r.RowsAway)))
	}
	return cli.Facts(w, []string{
		"ready", fmt.Sprintf("%.2f s", r.Ready),
		"caught up", fmt.Sprintf("%.2f s, %s of %.0f s; %.1f s of CPU", r.CaughtUp, verdict, r.Bar, r.CPU),
		"away", away,
		"read", fmt.Sprintf("%s of snapshots, %s of log", humanize.IBytes(uint64(r.SnapshotBytes)),
			humanize.IBytes(r.LogBytes)),
		"server", fmt.Sprintf("%s rows, dim %d%s, %s, %s, %s, log %s, killed: %s", cli.Count(r.Rows), r.Dim, memory,
			r.Optimizer, cli.Plural(r.Replicas, "replica"), cli.Plural(r.Shards, "shard"), r.Backend, r.Killed),
		"machine", r.Host.String(),
	}...)
}
