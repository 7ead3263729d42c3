package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	checkpointRounds = 5
	// checkpointEvery is the interval that the cost is told for.
	checkpointEvery = 10 * time.Minute
	// overheadBar is the share of training throughput that checkpoints may cost then.
	overheadBar = 0.02
)

// checkpointResult is the JSON of `bench checkpoint`; the field names are a contract.
type checkpointResult struct {
	Schema string `json:"schema"`
	Op     string `json:"op"`

	// LostSeconds is the training that one checkpoint costs: the rows that were not
	// pushed in a window with one in it, over the rate in the neighbouring windows. Median.
	LostSeconds float64   `json:"lost_seconds"`
	EachLost    []float64 `json:"lost_seconds_of_each"`
	Interval    float64   `json:"interval_seconds"`
	Overhead    float64   `json:"overhead"` // LostSeconds / Interval
	Bar         float64   `json:"bar"`
	Passed      bool      `json:"passed"`
	// Noise is the largest LostSeconds that windows without a checkpoint would give: LostSeconds
	// is not more exact than that.
	Noise float64 `json:"noise_seconds"`

	RowsPerSecond float64 `json:"rows_per_second"` // without a checkpoint, median
	Took          float64 `json:"checkpoint_seconds"`
	Bytes         int64   `json:"checkpoint_bytes"`
	HeldMs        float64 `json:"held_ms"`   // longest wait of a push
	PausedMs      float64 `json:"paused_ms"` // longest pause of the trainer
	MaxPushMs     float64 `json:"max_push_ms"`

	Window float64 `json:"window_seconds"`
	workload
}

// benchCheckpoint pushes without a pause in windows with and without a checkpoint, like a
// trainer that takes part in checkpoints and whose model costs nothing.
func benchCheckpoint(ctx context.Context, cfg benchConfig, progress io.Writer) (r *checkpointResult, err error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cluster, cleanup, err := benchCluster(ctx, &cfg, progress)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cleanup()) }()
	cfg.endpoints = cluster.Endpoints()
	dest, err := os.MkdirTemp("", "rowraft-bench-checkpoints-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dest)) }()
	workers, err := benchWorkers(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer closeWorkers(workers)
	// before its first push
	member, err := jobs.Enter(ctx, workers[0].c, jobs.Entry{Job: "bench", Worker: "bench", Workers: 1})
	if err != nil {
		return nil, err
	}
	if err := benchLoad(ctx, cfg, workers, progress); err != nil {
		return nil, err
	}
	b := &checkpointBench{cfg: cfg, dest: dest, workers: workers}
	attending, err := member.Register(ctx, jobs.Registration{Pause: b.pause})
	if err != nil {
		return nil, err
	}
	defer attending.Close()
	for _, w := range workers {
		w.gate = &b.gate
	}
	return b.run(ctx, progress)
}

// checkpointBench is one run.
type checkpointBench struct {
	cfg     benchConfig
	dest    string
	workers []*benchWorker
	gate    sync.RWMutex // each push holds it for reading, a pause for writing
	result  checkpointResult
}

func (b *checkpointBench) pause(context.Context, jobs.Agree) (*jobs.Paused, error) {
	b.gate.Lock()
	return &jobs.Paused{Size: 1, Release: b.gate.Unlock, Write: func(w io.Writer) error {
		_, err := w.Write([]byte{0})
		return err
	}}, nil
}

func (b *checkpointBench) run(ctx context.Context, progress io.Writer) (*checkpointResult, error) {
	cfg := b.cfg
	b.result = checkpointResult{
		Schema: cli.JSONSchema, Op: "checkpoint", Interval: checkpointEvery.Seconds(), Bar: overheadBar,
		Window: cfg.seconds, workload: workloadOf(&cfg, b.workers[0].c.Map()),
	}
	if _, err := measure(ctx, cfg, b.workers, cfg.warmup); err != nil {
		return nil, err
	}
	var plain, with []float64 // rows per second
	for round := range 2*checkpointRounds + 1 {
		rate, err := b.window(ctx, round%2 == 1)
		if err != nil {
			return nil, err
		}
		if round%2 == 0 {
			plain = append(plain, rate)
			fmt.Fprintf(progress, "without a checkpoint: %s\n", humanize.SIWithDigits(rate, 2, "rows/s"))
		} else {
			with = append(with, rate)
			fmt.Fprintf(progress, "with one:             %s\n", humanize.SIWithDigits(rate, 2, "rows/s"))
		}
	}
	r := &b.result
	for i, rate := range with {
		r.EachLost = append(r.EachLost, cfg.seconds*(1-rate/((plain[i]+plain[i+1])/2)))
	}
	for i := 1; i < len(plain)-1; i++ {
		r.Noise = max(r.Noise, cfg.seconds*abs(1-plain[i]/((plain[i-1]+plain[i+1])/2)))
	}
	r.LostSeconds, r.RowsPerSecond = median(r.EachLost), median(plain)
	r.Overhead = max(r.LostSeconds, 0) / r.Interval
	r.Passed = r.Overhead <= overheadBar
	return r, nil
}

func abs(x float64) float64 { return max(x, -x) }

func median(list []float64) float64 {
	s := slices.Sorted(slices.Values(list))
	return (s[len(s)/2] + s[(len(s)-1)/2]) / 2
}

// window pushes for a while, with a checkpoint made meanwhile or without.
func (b *checkpointBench) window(ctx context.Context, cut bool) (rate float64, err error) {
	var wg sync.WaitGroup
	var failed error
	if cut {
		wg.Go(func() { failed = b.checkpoint(ctx) })
	}
	begun := time.Now()
	hist, err := measure(ctx, b.cfg, b.workers, b.cfg.seconds)
	took := time.Since(begun).Seconds()
	wg.Wait()
	if err = errors.Join(err, failed); err != nil {
		return 0, err
	}
	if cut {
		b.result.MaxPushMs = max(b.result.MaxPushMs, float64(hist.Max())/1e3)
	}
	if b.result.Took > b.cfg.seconds {
		return 0, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"a checkpoint took %.1f s, longer than a window: give --seconds more", b.result.Took)
	}
	return float64(hist.TotalCount()) * float64(b.cfg.batch) / took, nil
}

// checkpoint makes one at the scheduler's leader.
func (b *checkpointBench) checkpoint(ctx context.Context) (err error) {
	conf, err := b.cfg.tls.TLS.Open(nil)
	if err != nil {
		return err
	}
	c := route.Cluster{Pool: route.NewPool(conf, nil, 1), Endpoints: slices.Clone(b.cfg.endpoints)}
	defer func() { err = errors.Join(err, c.Pool.Close()) }()
	leader, err := c.AwaitLeader(ctx)
	if err != nil {
		return err
	}
	conn, err := c.Pool.Get(leader)
	if err != nil {
		return err
	}
	return b.checkpointAt(ctx, conn)
}

func (b *checkpointBench) checkpointAt(ctx context.Context, conn *grpc.ClientConn) error {
	begun := time.Now()
	stream, err := rowraftv1.NewCheckpointsClient(conn).CreateCheckpoint(ctx,
		&rowraftv1.CreateCheckpointRequest{Destination: b.dest, Job: "bench"})
	if err != nil {
		return rpc.FromStatus(err)
	}
	for {
		reply, err := stream.Recv()
		if err != nil {
			return rpc.FromStatus(err)
		}
		if reply.GetPhase() != "done" {
			continue
		}
		m, err := checkpoint.ParseManifest(reply.GetManifest())
		if err != nil {
			return err
		}
		r := &b.result
		r.Took, r.Bytes = max(r.Took, time.Since(begun).Seconds()), m.Bytes()
		r.HeldMs = max(r.HeldMs, float64(m.HeldFor.Microseconds())/1e3)
		for _, t := range reply.GetTrainers() {
			r.PausedMs = max(r.PausedMs, float64(t.GetPausedNs())/1e6)
		}
		return nil
	}
}

func (r *checkpointResult) Print(w io.Writer) error {
	return cli.Facts(w, append([]string{
		"one checkpoint", fmt.Sprintf("costs %.2f s of training, ± %.2f", r.LostSeconds, r.Noise),
		"every 10 minutes", fmt.Sprintf("%.3f %% of the throughput; the bar is %.0f %%", 100*r.Overhead, 100*r.Bar),
		"trainer", fmt.Sprintf("stood still for %.1f ms at most; pushes waited %.1f ms for the cut; the slowest took %.1f ms",
			r.PausedMs, r.HeldMs, r.MaxPushMs),
		"checkpoint", fmt.Sprintf("%s in %.2f s at most", cli.Size(uint64(r.Bytes)), r.Took),
		"without", humanize.SIWithDigits(r.RowsPerSecond, 2, "rows/s"),
	}, r.facts("")...)...)
}
