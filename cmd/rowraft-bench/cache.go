package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cache"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/scaffold"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/trainer/data/zipf"
)

const (
	cacheFeatures  = 26
	cacheExamples  = 2048 // of a batch
	cacheStaleness = 8    // steps
	// The copies of a client have a steady mix of ages after cacheWarm batches.
	cacheWarm    = 2 * (cacheStaleness + 1)
	cacheBatches = 36 // measured

	// cacheReuseBar is the least share of the pulled bytes that copies save a trainer at cacheBarSkew.
	cacheReuseBar = 0.35
	cacheBarSkew  = 1.0
)

// skews are the exponents of the power laws by which batches draw their keys; 0: all keys are equally likely.
var skews = []float64{0, 0.8, 1.0, 1.2}

// skewName returns the name of an exponent for people.
func skewName(s float64) string {
	if s == 0 {
		return "uniform"
	}
	return fmt.Sprintf("Zipf %.1f", s)
}

// cachePatterns are the clients that are measured. A trainer pushes gradients of each row that it has pulled. A reader
// pulls, and another client pushes one batch for each of its batches, as for evaluation or inference next to a trainer.
var cachePatterns = []string{"trainer", "reader"}

// cacheArms are the ways to pull that are compared; the first one keeps no copies.
var cacheArms = []struct {
	name  string
	reuse func(step uint64) client.Reuse // nil: no copies
	whole bool                           // copies that are too old are pulled whole, also if they have not changed
}{
	{"no cache", nil, false},
	{"reuse", reuseSteps, true},
	{"reuse, versions", reuseSteps, false},
}

func reuseSteps(step uint64) client.Reuse {
	return client.Reuse{Now: step, Since: step - cacheStaleness}
}

// cacheResult is the JSON of `bench cache`; the field names are a contract. Bytes are those on the client's
// connections: requests, replies and their headers.
type cacheResult struct {
	Schema     string      `json:"schema"`
	Op         string      `json:"op"`
	Features   int         `json:"features"`
	Examples   int         `json:"examples_per_batch"`
	Staleness  int         `json:"staleness_steps"`
	CacheBytes int64       `json:"cache_bytes"`
	Batches    int         `json:"batches"`
	Skews      []cacheSkew `json:"skews"`
	Bar        float64     `json:"bar"` // of Saved by reuse, for a trainer at Zipf 1.0
	scaffold.Bars
	Rows      int    `json:"rows"`
	Dim       int    `json:"dim"`
	DType     string `json:"dtype"`
	Optimizer string `json:"optimizer"`
	Replicas  int    `json:"replicas"`
	Shards    int    `json:"shards"`
	Backend   string `json:"log_backend"`
	scaffold.Host
}

// cacheSkew has the results for one distribution of the keys.
type cacheSkew struct {
	Skew float64    `json:"zipf"`           // 0: uniform
	Rows float64    `json:"rows_per_batch"` // distinct keys of a batch
	Arms []cacheArm `json:"arms"`
}

// cacheArm has the means per batch of one pattern and way to pull.
type cacheArm struct {
	Pattern string  `json:"pattern"`
	Name    string  `json:"name"`
	Pulled  float64 `json:"rows_pulled"` // the others came from copies that are new enough
	// Unchanged counts those of Pulled that the servers did not send, because the copies had not changed.
	Unchanged float64 `json:"rows_unchanged"`
	Bytes     float64 `json:"bytes_pulled"`
	Saved     float64 `json:"saved"` // share of the bytes that the same pattern pulls without a cache
	Pushed    float64 `json:"bytes_pushed"`
	// SavedOfAll is the share of the bytes pulled and pushed, replies to pushes included.
	SavedOfAll float64 `json:"saved_of_all"`
	Millis     float64 `json:"pull_ms"`
}

// cacheBench measures on one cluster.
type cacheBench struct {
	benchConfig
	schema rowraft.Schema
	dtype  rowraft.DType
	grads  []float32
}

// benchCache counts what clients pull per batch without and with copies.
func benchCache(ctx context.Context, cfg benchConfig, progress io.Writer) (r *cacheResult, err error) {
	if err := errors.Join(cfg.check(), cache.CheckBytes(cfg.cacheBytes)); err != nil {
		return nil, err
	}
	cluster, cleanup, err := benchCluster(ctx, &cfg, progress)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cleanup()) }()
	cfg.endpoints = cluster.Endpoints()
	b := &cacheBench{benchConfig: cfg}
	if b.schema, err = benchSchema(cfg); err != nil {
		return nil, err
	}
	if b.dtype, err = rowraft.ParseDType(cfg.dtype); err != nil {
		return nil, err
	}
	if err := b.load(ctx, progress); err != nil {
		return nil, err
	}
	r = &cacheResult{
		Schema: cli.JSONSchema, Op: cfg.op, Features: cacheFeatures, Examples: cacheExamples, Staleness: cacheStaleness,
		CacheBytes: cfg.cacheBytes, Batches: cacheBatches, Bar: cacheReuseBar, Rows: cfg.rows, Dim: cfg.dim,
		DType: cfg.dtype, Optimizer: cfg.optimizer, Replicas: cfg.replicas, Shards: cfg.shards, Backend: cfg.backend,
		Host: scaffold.ThisHost(),
	}
	for _, s := range skews {
		of, err := b.measure(ctx, s, progress)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", skewName(s), err)
		}
		r.Skews = append(r.Skews, *of)
	}
	r.judge()
	return r, nil
}

// load pushes every row once.
func (b *cacheBench) load(ctx context.Context, progress io.Writer) error {
	workers, err := benchWorkers(ctx, b.benchConfig)
	if err != nil {
		return err
	}
	defer closeWorkers(workers)
	return benchLoad(ctx, b.benchConfig, workers, progress)
}

// measure runs all patterns and ways to pull with the same batches.
func (b *cacheBench) measure(ctx context.Context, skew float64, progress io.Writer) (*cacheSkew, error) {
	out := &cacheSkew{Skew: skew}
	for _, pattern := range cachePatterns {
		var without *cacheArm
		for i := range cacheArms {
			arm, rows, err := b.run(ctx, skew, pattern, i)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", pattern, cacheArms[i].name, err)
			}
			if without == nil {
				without = arm
			}
			arm.Saved = 1 - arm.Bytes/without.Bytes
			arm.SavedOfAll = 1 - (arm.Bytes+arm.Pushed)/(without.Bytes+without.Pushed)
			fmt.Fprintf(progress, "%s, %s, %s: %.0f of %.0f rows, %.0f of them unchanged, %s per batch, %.1f %% saved\n",
				skewName(skew), pattern, arm.Name, arm.Pulled, rows, arm.Unchanged, humanize.IBytes(uint64(arm.Bytes)),
				100*arm.Saved)
			out.Rows = rows
			out.Arms = append(out.Arms, *arm)
		}
	}
	return out, nil
}

// run pulls and pushes batches with clients of its own. It also returns the mean number of distinct keys.
func (b *cacheBench) run(ctx context.Context, skew float64, pattern string, way int) (*cacheArm, float64, error) {
	arm := &cacheArm{Pattern: pattern, Name: cacheArms[way].name}
	reuse := cacheArms[way].reuse
	opts := client.Options{}
	if reuse != nil {
		opts.CacheBytes, opts.WholeRows = b.cacheBytes, cacheArms[way].whole
	}
	from, err := b.dial(ctx, opts)
	if err != nil {
		return nil, 0, err
	}
	defer from.Close()
	to, next := from, b.batches(skew, 1)
	others := next // the batches that are pushed
	if pattern == "reader" {
		if to, err = b.dial(ctx, client.Options{}); err != nil {
			return nil, 0, err
		}
		defer to.Close()
		others = b.batches(skew, 2)
	}
	var rows, pulled, sent, pushed, seconds float64
	var before client.Copies
	for i := range cacheWarm + cacheBatches {
		if i == cacheWarm {
			rows, sent, pushed, seconds, before = 0, 0, 0, 0, from.Copies()
		}
		seg := client.Segment{Table: from.table, Keys: next()}
		seg.Values = make([]float32, len(seg.Keys)*b.dim)
		if reuse != nil {
			seg.Reuse = reuse(uint64(i + cacheStaleness + 1))
		}
		rows += float64(len(seg.Keys))
		start := time.Now()
		n, err := from.bytes.of(func() error { return from.Pull(ctx, seg) })
		if err != nil {
			return nil, 0, err
		}
		sent, seconds = sent+n, seconds+time.Since(start).Seconds()
		keys := seg.Keys
		if to != from {
			keys = others()
		}
		if n, err = to.bytes.of(func() error { return b.push(ctx, to, keys) }); err != nil {
			return nil, 0, err
		}
		pushed += n
	}
	pulled = rows
	if reuse != nil {
		now := from.Copies()
		pulled = float64(now.Stale + now.Misses - before.Stale - before.Misses)
		arm.Unchanged = float64(now.Unchanged-before.Unchanged) / cacheBatches
	}
	arm.Pulled, arm.Bytes, arm.Pushed = pulled/cacheBatches, sent/cacheBatches, pushed/cacheBatches
	arm.Millis = seconds / cacheBatches * 1e3
	return arm, rows / cacheBatches, nil
}

func (b *cacheBench) push(ctx context.Context, to *countedClient, keys []rowraft.Key) error {
	for len(b.grads) < len(keys)*b.dim {
		b.grads = append(b.grads, 1e-4)
	}
	_, err := to.table.Push(ctx, keys, b.grads[:len(keys)*b.dim])
	return err
}

// batches returns a function that draws the distinct keys of one batch after the other, ascending.
func (b *cacheBench) batches(skew float64, stream uint64) func() []rowraft.Key {
	rng := rand.New(rand.NewPCG(b.seed, stream))
	draw := func() int { return rng.IntN(b.rows) }
	if skew > 0 {
		z, err := zipf.New(int64(b.rows), skew)
		if err != nil {
			panic(err) // rows and skew are in range
		}
		draw = func() int { return int(z.Draw(rng.Float64)) - 1 }
	}
	return func() []rowraft.Key {
		keys := make([]rowraft.Key, cacheFeatures*cacheExamples)
		for i := range keys {
			keys[i] = benchKey(draw())
		}
		slices.Sort(keys)
		return slices.Compact(keys)
	}
}

// countedClient is a client with the bytes of its connections.
type countedClient struct {
	*client.Client
	table *client.Table
	bytes *byteCount
}

func (b *cacheBench) dial(ctx context.Context, opts client.Options) (*countedClient, error) {
	count := &byteCount{}
	opts.Endpoints, opts.DType, opts.Dial = b.endpoints, b.dtype, count.dial
	c, err := client.Dial(ctx, opts)
	if err != nil {
		return nil, err
	}
	t, err := c.CreateTable(ctx, b.schema, true)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &countedClient{c, t, count}, nil
}

// byteCount counts the bytes of connections in both directions.
type byteCount struct{ n atomic.Int64 }

func (c *byteCount) dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	return &countedConn{conn, &c.n}, err
}

// of returns the bytes on the connections while f runs.
func (c *byteCount) of(f func() error) (float64, error) {
	before := c.n.Load()
	err := f()
	return float64(c.n.Load() - before), err
}

type countedConn struct {
	net.Conn
	n *atomic.Int64
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.n.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// judge sets the verdict.
func (r *cacheResult) judge() {
	for _, s := range r.Skews {
		for _, a := range s.Arms {
			if s.Skew == cacheBarSkew && a.Pattern == "trainer" && a.Name == "reuse" && a.Saved < r.Bar {
				r.Miss("%s, %s: reuse saves %.1f %% of the pulled bytes: want %.0f %%", skewName(s.Skew), a.Pattern,
					100*a.Saved, 100*r.Bar)
			}
		}
	}
	r.Passed = len(r.Failed) == 0
}

// print writes the result for a person.
func (r *cacheResult) Print(w io.Writer) error {
	var pairs []string
	for _, s := range r.Skews {
		pairs = append(pairs, skewName(s.Skew), fmt.Sprintf("%.0f distinct rows a batch", s.Rows))
		for _, a := range s.Arms {
			text := fmt.Sprintf("%s: %.0f rows, %s in %.1f ms", a.Name, a.Pulled, humanize.IBytes(uint64(a.Bytes)), a.Millis)
			if a.Unchanged > 0 {
				text += fmt.Sprintf("; %.0f rows unchanged", a.Unchanged)
			}
			if a.Name != cacheArms[0].name {
				text += fmt.Sprintf("; saves %.1f %%, with pushes %.1f %%", 100*a.Saved, 100*a.SavedOfAll)
			}
			pairs = append(pairs, "  "+a.Pattern, text)
		}
	}
	return cli.Facts(w, append(pairs,
		"bars", r.Summary(),
		"batch", fmt.Sprintf("%d features × %d examples; copies of up to %d steps in %s", r.Features, r.Examples,
			r.Staleness, humanize.IBytes(uint64(r.CacheBytes))),
		"table", fmt.Sprintf("%s rows, dim %d, %s, %s on the wire", cli.Count(uint64(r.Rows)), r.Dim, r.Optimizer, r.DType),
		"servers", fmt.Sprintf("%s, %s, log %s", cli.Plural(r.Replicas, "replica"), cli.Plural(r.Shards, "shard"), r.Backend),
		"machine", r.Host.String())...)
}
