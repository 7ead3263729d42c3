package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/dustin/go-humanize"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/failover"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/scaffold"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/trainer/data/zipf"
)

// benchConfig has the flags of a benchmark.
type benchConfig struct {
	op        string // the name of the command
	optimizer string
	tables    int // which share the rows
	rows      int
	dim       int
	memory    string // of a tiered table; "": all rows
	batch     int
	conns     int
	keys      string // "uniform" or "zipf"
	zipfS     float64
	seconds   float64
	warmup    float64
	dtype     string
	seed      uint64

	endpoints []string // empty: own servers
	replicas  int
	shards    int
	backend   string
	profile   string
	sync      *float64 // of the disk of the own servers, in ms
	kill      string   // bench restart: "one" or "all"
	away      float64  // bench restart: seconds of pushes without the killed server
	strict    bool     // --check: a missed bar is an error
	failover  failover.Config
	quality   qualityConfig
	batches   int           // bench scaling: batches of a job
	servers   int           // bench hot
	maxAge    time.Duration // bench hot: bound of the reads
	// cacheBytes is the memory of a client's copies in bench cache.
	cacheBytes int64
	// snapshotEvery is the log between two snapshots in bench tails, such as 128MiB.
	snapshotEvery string
	// serverProfile is the file for a CPU profile of the first own server; "": none.
	serverProfile string
	serverBinary  string         // "": found by localcluster
	files         rpc.TLSFiles   // with endpoints
	insecure      bool           // with endpoints
	tls           client.Options // only its field TLS is set
}

// benchResult is the JSON of a benchmark; the field names are a contract.
type benchResult struct {
	Schema        string  `json:"schema"`
	Op            string  `json:"op"`
	RowsPerSecond float64 `json:"rows_per_second"`
	P50           float64 `json:"p50_ms"`
	P99           float64 `json:"p99_ms"`
	Max           float64 `json:"max_ms"`
	Calls         int64   `json:"calls"`
	Seconds       float64 `json:"seconds"`

	// The following are null with --endpoints: other processes cannot be measured.
	ServerCPU *float64 `json:"server_cpu_seconds_per_million_rows"`
	ClientCPU *float64 `json:"client_cpu_seconds_per_million_rows"`
	// AllocatedPerRow is the memory that the client's process allocated, garbage included.
	AllocatedPerRow float64  `json:"client_bytes_allocated_per_row"`
	BytesPerRow     *float64 `json:"bytes_per_row"`

	DType string `json:"dtype"`
	workload
}

// bench runs one benchmark and writes a line for each phase to progress.
func bench(ctx context.Context, cfg benchConfig, progress io.Writer) (result *benchResult, err error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	var cluster *localcluster.Cluster
	if len(cfg.endpoints) == 0 {
		var cleanup func() error
		if cluster, cleanup, err = benchCluster(ctx, &cfg, progress); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, cleanup()) }()
		cfg.endpoints = cluster.Endpoints()
	}
	workers, err := warmWorkers(ctx, cfg, progress)
	if err != nil {
		return nil, err
	}
	defer closeWorkers(workers)
	fmt.Fprintf(progress, "measuring for %gs …\n", cfg.seconds)
	return benchMeasure(ctx, cfg, cluster, workers)
}

// warmWorkers returns workers on a table with all its rows, after the warm-up. The caller closes them.
func warmWorkers(ctx context.Context, cfg benchConfig, progress io.Writer) (workers []*benchWorker, err error) {
	if workers, err = benchWorkers(ctx, cfg); err != nil {
		return nil, err
	}
	if err = benchLoad(ctx, cfg, workers, progress); err == nil && cfg.warmup > 0 {
		fmt.Fprintf(progress, "warming up for %gs …\n", cfg.warmup)
		_, err = measure(ctx, cfg, workers, cfg.warmup)
	}
	if err != nil {
		closeWorkers(workers)
		return nil, err
	}
	return workers, nil
}

func (c *benchConfig) check() error {
	bad := func(format string, args ...any) error {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, format, args...)
	}
	if _, err := rowraft.ParseDType(c.dtype); err != nil {
		return bad("--dtype %w", err)
	}
	switch {
	case c.keys != "uniform" && c.keys != "zipf":
		return bad("--keys %q: want uniform or zipf", c.keys)
	case c.batch < 1 || c.batch > c.rows/2:
		return bad("--batch %d: want 1 to half of --rows (%d), since a batch has distinct keys", c.batch, c.rows)
	case c.tables < 1 || c.tables > c.batch:
		return bad("--tables %d: want 1 to --batch (%d)", c.tables, c.batch)
	case c.conns < 1 || c.conns > 64:
		return bad("--conns %d: want 1 to 64", c.conns)
	case c.seconds <= 0 || c.warmup < 0:
		return bad("--seconds %v, --warmup %v: want a positive time", c.seconds, c.warmup)
	case c.replicas < 1 || c.replicas > 3:
		return bad("--replicas %d: want 1 to 3", c.replicas)
	}
	schema, err := benchSchema(*c)
	if err != nil {
		return err
	}
	return schema.Validate()
}

// benchCluster starts servers whose data is removed afterwards, and measures their disk before.
func benchCluster(ctx context.Context, cfg *benchConfig,
	progress io.Writer) (*localcluster.Cluster, func() error, error) {
	sync, err := scaffold.SyncTime(os.TempDir())
	if err != nil {
		return nil, nil, err
	}
	cfg.sync = &sync
	fmt.Fprintf(progress, "starting %s …\n", cli.Plural(cfg.replicas, "server"))
	cluster, dir, err := cfg.own().Start(ctx, 60*time.Second, func(dir string, o *localcluster.Options) {
		o.Args = []string{"--log-level", "warn"}
		if cfg.serverProfile != "" {
			o.Args = append(o.Args, "--cpu-profile", localcluster.PerServer(dir, ".prof"))
		}
	})
	if err != nil {
		return nil, nil, err
	}
	return cluster, func() error {
		err := cluster.Stop()
		if cfg.serverProfile != "" && err == nil {
			err = os.Rename(filepath.Join(dir, "n1.prof"), cfg.serverProfile)
		}
		return errors.Join(err, os.RemoveAll(dir))
	}, nil
}

// own returns the servers that a measurement starts.
func (c *benchConfig) own() *scaffold.Servers {
	return &scaffold.Servers{Binary: c.serverBinary, Number: c.replicas, Shards: c.shards, Backend: c.backend,
		Profile: c.profile}
}

// benchWorker is one connection with its prepared calls.
type benchWorker struct {
	gate   *sync.RWMutex // held for reading by each call; nil: none
	c      *client.Client
	tables []*client.Table
	calls  [][]client.Segment
	values []float32 // of all segments of a call
}

// segments returns a call for keys, of which each belongs to one of the tables.
func (w *benchWorker) segments(keys []rowraft.Key) []client.Segment {
	segs := make([]client.Segment, len(w.tables))
	for i, t := range w.tables {
		segs[i].Table = t
	}
	for _, key := range keys {
		s := &segs[uint64(key)%uint64(len(segs))]
		s.Keys = append(s.Keys, key)
	}
	values := w.values
	for i := range segs {
		n := len(segs[i].Keys) * w.tables[i].Dim()
		segs[i].Values, values = values[:n], values[n:]
	}
	return slices.DeleteFunc(segs, func(s client.Segment) bool { return len(s.Keys) == 0 })
}

// benchBatches is how many different batches a worker cycles through.
const benchBatches = 64

func benchWorkers(ctx context.Context, cfg benchConfig) (workers []*benchWorker, err error) {
	defer func() {
		if err != nil {
			closeWorkers(workers)
		}
	}()
	schema, err := benchSchema(cfg)
	if err != nil {
		return nil, err
	}
	dtype, err := rowraft.ParseDType(cfg.dtype)
	if err != nil {
		return nil, err
	}
	setup, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	for i := range cfg.conns {
		c, err := client.Dial(setup, client.Options{Endpoints: cfg.endpoints, TLS: cfg.tls.TLS, ConnsPerNode: 1, DType: dtype,
			AttemptTimeout: 10 * time.Second})
		if err != nil {
			return workers, err
		}
		w := &benchWorker{c: c, values: make([]float32, cfg.batch*cfg.dim)}
		workers = append(workers, w)
		for n := range cfg.tables {
			s := schema
			if n > 0 {
				s.Name += fmt.Sprintf(".%d", n)
			}
			t, err := c.CreateTable(setup, s, true)
			if err != nil {
				return workers, err
			}
			w.tables = append(w.tables, t)
		}
		rng := rand.New(rand.NewPCG(cfg.seed, uint64(i)))
		for j := range w.values {
			w.values[j] = rng.Float32()*0.02 - 0.01
		}
		batches, err := benchKeys(cfg, rng)
		if err != nil {
			return workers, err
		}
		for _, keys := range batches {
			w.calls = append(w.calls, w.segments(keys))
		}
	}
	return workers, nil
}

func closeWorkers(ws []*benchWorker) {
	for _, w := range ws {
		_ = w.c.Close()
	}
}

func benchSchema(cfg benchConfig) (rowraft.Schema, error) {
	opt, err := parseOptimizer(cfg.optimizer)
	if err != nil {
		return rowraft.Schema{}, err
	}
	memory := uint64(0)
	if cfg.memory != "" {
		if memory, err = humanize.ParseBytes(cfg.memory); err != nil || memory == 0 {
			return rowraft.Schema{}, cli.Usagef("--memory %q: want a size such as 64MiB", cfg.memory)
		}
	}
	return rowraft.Schema{
		Name: fmt.Sprintf("bench.%s.%d.%d.%d", cfg.optimizer, cfg.dim, cfg.rows, cfg.seed),
		Kind: rowraft.Sparse, Dim: cfg.dim, Memory: memory,
		Initializer: rowraft.Initializer{Kind: rowraft.InitUniform, Seed: cfg.seed, A: -0.01, B: 0.01},
		Optimizer:   opt,
	}, nil
}

// parseOptimizer returns an optimizer by name, with usual constants.
func parseOptimizer(name string) (rowraft.Optimizer, error) {
	kind, err := rowraft.ParseOptimizerKind(name)
	if err != nil {
		return rowraft.Optimizer{}, cli.Usagef("--optimizer %q: want %s", name, cli.OrList(rowraft.OptimizerNames()))
	}
	o := rowraft.Optimizer{Kind: kind}
	for constant, v := range map[string]float32{"lr": 0.01, "initial_accumulator": 0.1, "epsilon": 1e-8, "beta1": 0.9,
		"beta2": 0.999, "momentum": 0.9, "beta": 1} {
		if kind.Has(constant) {
			*o.Constant(constant) = v
		}
	}
	switch kind {
	case rowraft.Adam:
		o.LR = 0.001
	case rowraft.Adagrad:
		o.Epsilon = 0
	case rowraft.FTRL:
		o.InitialAccumulator = 0
	}
	return o, nil
}

// benchKey is the i-th key: spread over all 64 bits, as hashed ids are.
func benchKey(i int) rowraft.Key { return rowraft.Key(clustermap.Mix64(uint64(i) + 1)) }

// benchKeys draws batches of distinct keys, sorted, as a trainer hands them over.
func benchKeys(cfg benchConfig, rng *rand.Rand) ([][]rowraft.Key, error) {
	draw := func() int { return rng.IntN(cfg.rows) }
	if cfg.keys == "zipf" {
		z, err := zipf.New(int64(cfg.rows), cfg.zipfS)
		if err != nil {
			return nil, err
		}
		draw = func() int { return int(z.Draw(rng.Float64)) % cfg.rows }
	}
	out := make([][]rowraft.Key, benchBatches)
	for b := range out {
		seen := make(map[int]struct{}, cfg.batch)
		for len(seen) < cfg.batch {
			seen[draw()] = struct{}{}
		}
		keys := make([]rowraft.Key, 0, cfg.batch)
		for i := range seen {
			keys = append(keys, benchKey(i))
		}
		slices.Sort(keys)
		out[b] = keys
	}
	return out, nil
}

// benchLoad pushes every row once, so that all exist.
func benchLoad(ctx context.Context, cfg benchConfig, workers []*benchWorker, progress io.Writer) error {
	fmt.Fprintf(progress, "loading %d rows …\n", cfg.rows)
	all := make([]rowraft.Key, cfg.rows)
	for i := range all {
		all[i] = benchKey(i)
	}
	slices.Sort(all)
	var next atomic.Int64
	return parallel(workers, func(w *benchWorker) error {
		for {
			from := int(next.Add(int64(cfg.batch))) - cfg.batch
			if from >= len(all) {
				return nil
			}
			keys := all[from:min(from+cfg.batch, len(all))]
			if _, err := w.c.Push(ctx, w.segments(keys)...); err != nil {
				return fmt.Errorf("load: %w", err)
			}
		}
	})
}

func parallel(workers []*benchWorker, f func(*benchWorker) error) error {
	errs := make([]error, len(workers))
	var wg sync.WaitGroup
	for i, w := range workers {
		wg.Go(func() { errs[i] = f(w) })
	}
	wg.Wait()
	return cmp.Or(errs...)
}

// enter and leave stand around a call that a pause must wait for.
func (w *benchWorker) enter() {
	if w.gate != nil {
		w.gate.RLock()
	}
}

func (w *benchWorker) leave() {
	if w.gate != nil {
		w.gate.RUnlock()
	}
}

// measure runs the op on every worker for the given time.
func measure(ctx context.Context, cfg benchConfig, workers []*benchWorker,
	seconds float64) (*hdrhistogram.Histogram, error) {
	deadline := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	hist := hdrhistogram.New(1, 60_000_000, 3) // microseconds
	var mu sync.Mutex
	err := parallel(workers, func(w *benchWorker) error {
		mine := hdrhistogram.New(1, 60_000_000, 3)
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			hist.Merge(mine)
		}()
		for i := 0; time.Now().Before(deadline); i++ {
			call := w.calls[i%len(w.calls)]
			start := time.Now()
			w.enter()
			var err error
			if cfg.op == "pull" {
				err = w.c.Pull(ctx, call...)
			} else {
				_, err = w.c.Push(ctx, call...)
			}
			w.leave()
			if err != nil {
				return err
			}
			_ = mine.RecordValue(time.Since(start).Microseconds())
		}
		return nil
	})
	return hist, err
}

func benchMeasure(ctx context.Context, cfg benchConfig, cluster *localcluster.Cluster,
	workers []*benchWorker) (*benchResult, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	serverBefore, clientBefore := serversCPU(cluster), processCPU(os.Getpid())
	start := time.Now()
	hist, err := measure(ctx, cfg, workers, cfg.seconds)
	if err != nil {
		return nil, err
	}
	elapsed := time.Since(start).Seconds()
	clientAfter, serverAfter := processCPU(os.Getpid()), serversCPU(cluster)
	runtime.ReadMemStats(&after)

	rows := float64(hist.TotalCount()) * float64(cfg.batch)
	r := &benchResult{
		Schema: "rowraft/v1", Op: cfg.op, RowsPerSecond: rows / elapsed,
		P50: float64(hist.ValueAtQuantile(50)) / 1e3, P99: float64(hist.ValueAtQuantile(99)) / 1e3,
		Max:   float64(hist.Max()) / 1e3,
		Calls: hist.TotalCount(), Seconds: elapsed,
		AllocatedPerRow: float64(after.TotalAlloc-before.TotalAlloc) / rows,
		DType:           cfg.dtype, workload: workloadOf(&cfg, workers[0].c.Map()),
	}
	if cluster != nil {
		s, c := (serverAfter-serverBefore)/rows*1e6, (clientAfter-clientBefore)/rows*1e6
		r.ServerCPU, r.ClientCPU = &s, &c
	} else {
		r.Backend, r.Profile = "unknown", "unknown" // the servers of others do not say
	}
	r.BytesPerRow, err = bytesPerRow(ctx, cluster, workers[0])
	return r, err
}

// clockTicks is USER_HZ, which Linux fixes at 100 for /proc.
const clockTicks = 100

// processCPU returns the seconds of processor time a process has used, 0 if unknown.
func processCPU(pid int) float64 {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	_, rest, ok := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return (user + system) / clockTicks
}

func serversCPU(c *localcluster.Cluster) (seconds float64) {
	if c == nil {
		return 0
	}
	for _, s := range c.Servers() {
		seconds += processCPU(s.Pid())
	}
	return seconds
}
