package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft-bench/scaffold"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/localcluster"
)

// The bars of the tails.
const (
	tailsRatioBar  = 2.0  // p99 / p50
	tailsBeyondBar = 100. // ms of the longest push beyond the longest fdatasync of the probe
	tailsLostBar   = 0.03 // share of the rate that snapshots cost
)

// tailsResult is the JSON of `bench tails`; the field names are a contract.
type tailsResult struct {
	Schema        string  `json:"schema"`
	Op            string  `json:"op"`
	RowsPerSecond float64 `json:"rows_per_second"`
	P50           float64 `json:"p50_ms"`
	P99           float64 `json:"p99_ms"`
	Max           float64 `json:"max_ms"`
	ProbeMax      float64 `json:"probe_max_ms"` // longest fdatasync of the probe
	Seconds       float64 `json:"seconds"`

	// WithoutSnapshots is the rate in the seconds in which no replica wrote a snapshot; null if there were none.
	WithoutSnapshots *float64 `json:"rows_per_second_without_snapshots"`
	// Lost is the part of that rate that the whole run lacks.
	Lost *float64 `json:"lost"`
	// Together is the time in which more than one replica of a shard wrote a snapshot.
	Together  float64         `json:"together_seconds"`
	Snapshots []tailsSnapshot `json:"snapshots"`
	Trace     []tailsSecond   `json:"trace"`

	SnapshotEvery string `json:"snapshot_every"`
	workload
	Load [2]float64 `json:"machine_load"` // 1 minute average before and after
	scaffold.Bars
}

// tailsSnapshot is one snapshot, in seconds from the begin of the measurement.
type tailsSnapshot struct {
	Server string  `json:"server"`
	Shard  string  `json:"shard"`
	Begin  float64 `json:"begin"`
	End    float64 `json:"end"` // that of the measurement, if it was not complete
}

// tailsSecond is one second of the measurement. A push counts in the second in which it was acknowledged.
type tailsSecond struct {
	RowsPerSecond float64 `json:"rows_per_second"`
	P50           float64 `json:"p50_ms"`
	P99           float64 `json:"p99_ms"`
	Max           float64 `json:"max_ms"`
	ProbeMax      float64 `json:"probe_max_ms"`
	Snapshots     int     `json:"snapshots"` // most that were written at the same moment
}

// benchTails pushes at saturation while the replicas take snapshots and a probe syncs a file of its own on their disk.
func benchTails(ctx context.Context, cfg benchConfig, progress io.Writer) (r *tailsResult, err error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	every, err := humanize.ParseBytes(cfg.snapshotEvery)
	if err != nil || every == 0 {
		return nil, cli.Usagef("--snapshot-every %q: want a size such as 128MiB", cfg.snapshotEvery)
	}
	before := scaffold.MachineLoad()
	disk, err := scaffold.SyncTime(os.TempDir())
	if err != nil {
		return nil, err
	}
	cfg.sync = &disk
	fmt.Fprintf(progress, "starting %s …\n", cli.Plural(cfg.replicas, "server"))
	cluster, dir, err := cfg.own().Start(ctx, 60*time.Second, func(_ string, o *localcluster.Options) {
		o.Args = []string{"--log-level", "warn", "--snapshot-every-bytes", fmt.Sprint(every)}
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cluster.Stop(), os.RemoveAll(dir)) }()
	cfg.endpoints = cluster.Endpoints()
	workers, err := warmWorkers(ctx, cfg, progress)
	if err != nil {
		return nil, err
	}
	defer closeWorkers(workers)
	probe, err := startProbe(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer probe.stop()
	fmt.Fprintf(progress, "measuring for %gs …\n", cfg.seconds)
	b := newTails(cfg.seconds)
	stop := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { b.watchSnapshots(cluster, stop) })
	err = b.push(ctx, cfg, workers)
	close(stop)
	watch.Wait()
	if err != nil {
		return nil, err
	}
	if err := probe.read(b.begun, b.seconds); err != nil {
		return nil, err
	}
	r = b.result(cfg.batch)
	r.Op, r.SnapshotEvery = cfg.op, humanize.IBytes(every)
	r.workload = workloadOf(&cfg, workers[0].c.Map())
	r.Load = [2]float64{before, scaffold.MachineLoad()}
	r.judge()
	return r, nil
}

// tails collects one measurement.
type tails struct {
	begun time.Time

	mu      sync.Mutex // guards the fields below
	all     *hdrhistogram.Histogram
	seconds []tailsPart
	running map[string]int // snapshot that is being written, by its path, as an index of taken
	taken   []tailsSnapshot
}

// tailsPart is a second that is being measured.
type tailsPart struct {
	pushes    *hdrhistogram.Histogram // microseconds
	probe     time.Duration
	snapshots int
}

func newTails(seconds float64) *tails {
	b := &tails{begun: time.Now(), all: hdrhistogram.New(1, 60_000_000, 3), running: map[string]int{}}
	b.seconds = make([]tailsPart, int(seconds))
	for i := range b.seconds {
		b.seconds[i].pushes = hdrhistogram.New(1, 60_000_000, 3)
	}
	return b
}

// push pushes on every worker until the last second is over.
func (b *tails) push(ctx context.Context, cfg benchConfig, workers []*benchWorker) error {
	end := b.begun.Add(time.Duration(len(b.seconds)) * time.Second)
	return parallel(workers, func(w *benchWorker) error {
		for i := 0; time.Now().Before(end); i++ {
			start := time.Now()
			if _, err := w.c.Push(ctx, w.calls[i%len(w.calls)]...); err != nil {
				return err
			}
			b.pushed(start, time.Now())
		}
		return nil
	})
}

func (b *tails) pushed(start, end time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	us := end.Sub(start).Microseconds()
	_ = b.all.RecordValue(us)
	if i := int(end.Sub(b.begun) / time.Second); i < len(b.seconds) {
		_ = b.seconds[i].pushes.RecordValue(us)
	}
}

// watchSnapshots records the snapshots that are being written until stop is closed: the name of a directory that is
// not complete ends in ".tmp". So does that of an old one that is being removed, which was complete before.
func (b *tails) watchSnapshots(cluster *localcluster.Cluster, stop <-chan struct{}) {
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	complete := map[string]bool{}
	for {
		now := map[string]tailsSnapshot{}
		for _, s := range cluster.Servers() {
			paths, _ := filepath.Glob(filepath.Join(s.DataDir, "raft", "groups", "shard-*", "snapshots", "*"))
			for _, p := range paths {
				if name, writing := strings.CutSuffix(p, ".tmp"); !writing {
					complete[p] = true
				} else if !complete[name] {
					now[p] = tailsSnapshot{Server: s.Name, Shard: filepath.Base(filepath.Dir(filepath.Dir(p)))}
				}
			}
		}
		b.writing(now, time.Since(b.begun).Seconds())
		select {
		case <-t.C:
		case <-stop:
			b.writing(nil, time.Since(b.begun).Seconds())
			return
		}
	}
}

// writing records which snapshots are being written at a moment.
func (b *tails) writing(now map[string]tailsSnapshot, at float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for path, i := range b.running {
		if _, still := now[path]; !still {
			b.taken[i].End = at
			delete(b.running, path)
		}
	}
	for path, s := range now {
		if _, known := b.running[path]; !known {
			s.Begin = at
			b.running[path] = len(b.taken)
			b.taken = append(b.taken, s)
		}
	}
	if i := int(at); i < len(b.seconds) {
		b.seconds[i].snapshots = max(b.seconds[i].snapshots, len(now))
	}
}

func (b *tails) result(batch int) *tailsResult {
	r := &tailsResult{Schema: cli.JSONSchema, Seconds: float64(len(b.seconds)), Snapshots: b.taken,
		P50: float64(b.all.ValueAtQuantile(50)) / 1e3, P99: float64(b.all.ValueAtQuantile(99)) / 1e3,
		Max: float64(b.all.Max()) / 1e3}
	sum, free, freeSeconds := 0.0, 0.0, 0
	for _, s := range b.seconds {
		rows := float64(s.pushes.TotalCount()) * float64(batch)
		sum += rows
		if s.snapshots == 0 {
			free += rows
			freeSeconds++
		}
		probe := float64(s.probe.Microseconds()) / 1e3
		r.ProbeMax = max(r.ProbeMax, probe)
		r.Trace = append(r.Trace, tailsSecond{RowsPerSecond: rows, P50: float64(s.pushes.ValueAtQuantile(50)) / 1e3,
			P99: float64(s.pushes.ValueAtQuantile(99)) / 1e3, Max: float64(s.pushes.Max()) / 1e3, ProbeMax: probe,
			Snapshots: s.snapshots})
	}
	r.RowsPerSecond = sum / r.Seconds
	if freeSeconds > 0 {
		rate := free / float64(freeSeconds)
		lost := 1 - r.RowsPerSecond/rate
		r.WithoutSnapshots, r.Lost = &rate, &lost
	}
	r.Together = together(b.taken)
	return r
}

// together returns the time in which more than one replica of a shard wrote.
func together(taken []tailsSnapshot) (seconds float64) {
	for i, a := range taken {
		for _, o := range taken[:i] {
			if a.Shard == o.Shard {
				seconds += max(0, min(a.End, o.End)-max(a.Begin, o.Begin))
			}
		}
	}
	return seconds
}

func (r *tailsResult) judge() {
	if r.P99 > tailsRatioBar*r.P50 {
		r.Miss("p99 is %.1f × p50, at most %.1f", r.P99/r.P50, tailsRatioBar)
	}
	if beyond := r.Max - r.ProbeMax; beyond > tailsBeyondBar {
		r.Miss("the longest push took %.0f ms more than the longest fdatasync of the probe, at most %.0f", beyond,
			tailsBeyondBar)
	}
	switch {
	case len(r.Snapshots) == 0:
		r.Miss("no snapshot was taken: --seconds is too small for --snapshot-every")
	case r.Lost == nil:
		r.Miss("every second had a snapshot, so what they cost is unknown: raise --snapshot-every")
	case *r.Lost > tailsLostBar:
		r.Miss("snapshots cost %.1f %% of the rate, at most %.0f %%", 100**r.Lost, 100*tailsLostBar)
	}
	r.Passed = len(r.Failed) == 0
}

// Print writes the result for a person.
func (r *tailsResult) Print(w io.Writer) error {
	lost := "unknown: no second without a snapshot"
	if r.Lost != nil {
		lost = fmt.Sprintf("%.1f %% of %s", 100**r.Lost, humanize.SIWithDigits(*r.WithoutSnapshots, 2, "rows/s"))
	}
	pairs := []string{
		"rate", humanize.SIWithDigits(r.RowsPerSecond, 2, "rows/s"),
		"latency", fmt.Sprintf("p50 %.1f ms, p99 %.1f ms, max %.0f ms", r.P50, r.P99, r.Max),
		"disk", fmt.Sprintf("longest fdatasync of the probe %.0f ms", r.ProbeMax),
		"snapshots", fmt.Sprintf("%d, every %s of log, %.1f s with more than one of a shard", len(r.Snapshots),
			r.SnapshotEvery, r.Together),
		"lost", lost,
		"bars", r.Summary(),
		"load", fmt.Sprintf("%.1f before and %.1f after", r.Load[0], r.Load[1]),
	}
	if err := cli.Facts(w, append(pairs, r.facts("")...)...); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%6s %12s %8s %8s %8s %8s  %s\n", "second", "rows/s", "p50", "p99", "max", "probe", "snapshots")
	for i, s := range r.Trace {
		fmt.Fprintf(w, "%6d %12s %8.1f %8.1f %8.0f %8.0f  %s\n", i, humanize.SIWithDigits(s.RowsPerSecond, 2, ""), s.P50,
			s.P99, s.Max, s.ProbeMax, strings.Repeat("▪", s.Snapshots))
	}
	return nil
}

const (
	probeCommand = "fdatasync-probe"
	probeEvery   = 10 * time.Millisecond
)

// newProbeCommand is a process that syncs a small file, for the time that the disk itself takes.
func newProbeCommand() *cobra.Command {
	return &cobra.Command{Use: probeCommand + " FILE", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return probeDisk(args[0], cmd.InOrStdin(), cmd.OutOrStdout())
		}}
}

// probe is a running process of newProbeCommand.
type probe struct {
	cmd *exec.Cmd
	in  io.Closer
	out io.Reader
}

func startProbe(ctx context.Context, dir string) (*probe, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &probe{cmd: exec.CommandContext(ctx, self, probeCommand, filepath.Join(dir, "probe"))}
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if p.out, err = p.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	return p, p.cmd.Start()
}

// stop ends the process. A second call does nothing.
func (p *probe) stop() { _ = p.in.Close() }

// read ends the process and adds the longest call of each second to seconds, which begin at begun.
func (p *probe) read(begun time.Time, seconds []tailsPart) error {
	p.stop()
	for out := bufio.NewReader(p.out); ; {
		var at, took int64
		if _, err := fmt.Fscan(out, &at, &took); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("read the probe: %w", err)
		}
		end := time.Unix(0, at+took)
		if i := int(end.Sub(begun) / time.Second); i >= 0 && i < len(seconds) {
			seconds[i].probe = max(seconds[i].probe, time.Duration(took))
		}
	}
	return p.cmd.Wait()
}
