package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/scaffold"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/localcluster"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/trainer/data/zipf"
)

const (
	sumsInFlight = 2  // pushes of one writer at a time
	sumsPushes   = 48 // of each writer and distribution of keys

	// sumsBar is how many times fewer bytes a push must take in the log with sums than without, at sumsBarSkew.
	sumsBar     = 1.5
	sumsBarSkew = 1.2
)

// sumsResult is the JSON of `bench sums`; the field names are a contract. Bytes are those of the log of one replica.
type sumsResult struct {
	Schema   string     `json:"schema"`
	Op       string     `json:"op"`
	InFlight int        `json:"pushes_in_flight_of_each_writer"`
	Skews    []sumsSkew `json:"skews"`
	Bar      float64    `json:"bar"` // of Ratio at Zipf 1.2
	scaffold.Bars
	workload
}

// sumsSkew compares a table whose pushes are summed with one whose pushes are not.
type sumsSkew struct {
	Skew  float64 `json:"zipf"`  // 0: uniform
	Apart sumsArm `json:"apart"` // a bound on the weights that none reaches: the leader does not sum
	Sums  sumsArm `json:"sums"`
	Ratio float64 `json:"ratio"` // log bytes of a push without sums, over those with them
}

type sumsArm struct {
	LogBytes   float64 `json:"log_bytes_per_push"`
	Summed     float64 `json:"share_of_pushes_summed"`
	RowsPerSec float64 `json:"rows_per_second"`
	P50        float64 `json:"p50_ms"`
}

// benchSums pushes the same batches to both tables, from many writers at a time.
func benchSums(ctx context.Context, cfg benchConfig, progress io.Writer) (r *sumsResult, err error) {
	cfg.optimizer, cfg.keys, cfg.shards = "sgd", "zipf", 1
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cluster, cleanup, err := benchCluster(ctx, &cfg, progress)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cleanup()) }()
	cfg.endpoints = cluster.Endpoints()
	r = &sumsResult{Schema: cli.JSONSchema, Op: cfg.op, InFlight: sumsInFlight, Bar: sumsBar}
	for _, skew := range skews {
		of := sumsSkew{Skew: skew}
		for _, arm := range []struct {
			to    *sumsArm
			bound float32
		}{{&of.Apart, 1e30}, {&of.Sums, 0}} {
			b := sumsBench{benchConfig: cfg, cluster: cluster, skew: skew, bound: arm.bound}
			if err := b.run(ctx, arm.to, r); err != nil {
				return nil, err
			}
		}
		of.Ratio = of.Apart.LogBytes / of.Sums.LogBytes
		fmt.Fprintf(progress, "%s: %s of log a push, %s with sums\n", skewName(skew),
			humanize.IBytes(uint64(of.Apart.LogBytes)), humanize.IBytes(uint64(of.Sums.LogBytes)))
		r.Skews = append(r.Skews, of)
	}
	r.judge()
	return r, nil
}

// sumsBench is the measurement of one table with one distribution of keys.
type sumsBench struct {
	benchConfig
	cluster *localcluster.Cluster
	skew    float64
	bound   float32
}

func (b *sumsBench) run(ctx context.Context, to *sumsArm, r *sumsResult) error {
	schema, err := benchSchema(b.benchConfig)
	if err != nil {
		return err
	}
	schema.Name += fmt.Sprintf(".%v.%v", b.skew, b.bound > 0)
	schema.Optimizer.Bound = b.bound
	dtype, err := rowraft.ParseDType(b.dtype)
	if err != nil {
		return err
	}
	type writer struct {
		c    *client.Client
		t    *client.Table
		keys [][]rowraft.Key
	}
	writers := make([]writer, b.conns)
	defer func() {
		for _, w := range writers {
			if w.c != nil {
				_ = w.c.Close()
			}
		}
	}()
	grads := make([]float32, b.batch*b.dim)
	for i := range grads {
		grads[i] = 1e-4
	}
	for i := range writers {
		w := &writers[i]
		if w.c, err = client.Dial(ctx, client.Options{Endpoints: b.endpoints, DType: dtype}); err != nil {
			return err
		}
		if w.t, err = w.c.CreateTable(ctx, schema, true); err != nil {
			return err
		}
		w.keys = b.batches(uint64(i))
		if _, err := w.t.Push(ctx, w.keys[0], grads); err != nil { // opens its session, and creates hot rows
			return err
		}
	}
	r.workload = workloadOf(&b.benchConfig, writers[0].c.Map())
	before, err := b.logged(ctx)
	if err != nil {
		return err
	}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
		took []time.Duration
	)
	start := time.Now()
	for i := range writers {
		w := &writers[i]
		for half := range sumsInFlight {
			wg.Go(func() {
				for n := half; n < sumsPushes; n += sumsInFlight {
					began := time.Now()
					_, err := w.t.Push(ctx, w.keys[n], grads)
					mu.Lock()
					took, errs = append(took, time.Since(began)), append(errs, err)
					mu.Unlock()
					if err != nil {
						return
					}
				}
			})
		}
	}
	wg.Wait()
	elapsed := time.Since(start)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	after, err := b.logged(ctx)
	if err != nil {
		return err
	}
	slices.Sort(took)
	n := float64(len(took))
	*to = sumsArm{LogBytes: (after.bytes - before.bytes) / n, Summed: (after.summed - before.summed) / n,
		RowsPerSec: n * float64(b.batch) / elapsed.Seconds(), P50: float64(took[len(took)/2].Microseconds()) / 1e3}
	return nil
}

// batches draws the batches of one writer: distinct keys, ascending.
func (b *sumsBench) batches(stream uint64) [][]rowraft.Key {
	rng := rand.New(rand.NewPCG(b.seed, stream))
	draw := func() int { return rng.IntN(b.rows) }
	if b.skew > 0 {
		z, err := zipf.New(int64(b.rows), b.skew)
		if err != nil {
			panic(err) // rows and skew are in range
		}
		draw = func() int { return int(z.Draw(rng.Float64)) - 1 }
	}
	out := make([][]rowraft.Key, sumsPushes)
	for i := range out {
		seen := make(map[int]bool, b.batch)
		for len(seen) < b.batch {
			if key := draw(); !seen[key] {
				seen[key] = true
				out[i] = append(out[i], benchKey(key))
			}
		}
		slices.Sort(out[i])
	}
	return out
}

// logged is what the shard's log has taken.
type logged struct{ bytes, summed float64 }

// logged asks all servers, so that a change of the leader does not matter: each logs the same entries, and each sum was
// made by one of them.
func (b *sumsBench) logged(ctx context.Context) (l logged, err error) {
	for _, s := range b.cluster.Servers() {
		st, err := localcluster.AwaitStatus(ctx, s.Addr)
		if err != nil {
			return l, err
		}
		i := slices.IndexFunc(st.Replicas, func(r *rowraftv1.ReplicaStatus) bool { return r.Shard == 0 })
		if i < 0 {
			return l, fmt.Errorf("server %s has no replica of shard 0", s.Addr)
		}
		l.bytes = max(l.bytes, float64(st.Replicas[i].LogBytes))
		l.summed += float64(st.Replicas[i].SummedPushes)
	}
	return l, nil
}

// judge sets the verdict.
func (r *sumsResult) judge() {
	for _, s := range r.Skews {
		if s.Skew == sumsBarSkew && s.Ratio < r.Bar {
			r.Miss("%s: %.2f times fewer bytes of log a push: want %.1f", skewName(s.Skew), s.Ratio, r.Bar)
		}
	}
	r.Passed = len(r.Failed) == 0
}

// print writes the result for a person.
func (r *sumsResult) Print(w io.Writer) error {
	var pairs []string
	for _, s := range r.Skews {
		pairs = append(pairs, skewName(s.Skew), fmt.Sprintf(
			"%s of log a push, %s with sums: %.2f × less; %.0f %% of the pushes summed, %s, p50 %.1f ms (%s, %.1f ms "+
				"without)",
			humanize.IBytes(uint64(s.Apart.LogBytes)), humanize.IBytes(uint64(s.Sums.LogBytes)), s.Ratio, 100*s.Sums.Summed,
			humanize.SIWithDigits(s.Sums.RowsPerSec, 2, "rows/s"), s.Sums.P50,
			humanize.SIWithDigits(s.Apart.RowsPerSec, 2, "rows/s"), s.Apart.P50))
	}
	pairs = append(pairs, "writers",
		fmt.Sprintf("%d, with %d pushes of %d rows in flight each", r.Conns, r.InFlight, r.Batch))
	pairs = append(pairs, r.facts("")...)
	verdict := fmt.Sprintf("passed: at least %.1f × at %s", r.Bar, skewName(sumsBarSkew))
	if !r.Passed {
		verdict = "missed: " + r.Failed[0]
	}
	return cli.Facts(w, append(pairs, "bar", verdict)...)
}
