package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/failover"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/mnist"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/redisload"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/rowstore"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/scoring"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/scheduler"
)

// version is set by the linker (Makefile).
var version = "unknown"

func main() { os.Exit(cli.Main(newRoot())) }

func newRoot() *cobra.Command {
	format, asJSON := "", false
	root := &cobra.Command{
		Use:     "rowraft-bench",
		Short:   "Measure rowraft, and Redis under the same load",
		Version: version,
		Long: `rowraft-bench measures rowraft. Without --endpoints, what measures a cluster starts servers of its
own as processes on loopback, and removes them and their data afterwards.

Each connection sends one call of --batch distinct keys after the other. A push counts when it is
acknowledged: on the disks of a majority, and applied.

No environment variable sets a flag: only --endpoints on the command line makes a measurement run on a
cluster that exists.

Exit codes are those of rowraft; 3 says that a figure missed its bar (--check).`,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				format = cli.FormatJSON
			}
			return cli.CheckFormat(format)
		},
	}
	root.PersistentFlags().StringVarP(&format, "output", "o", cli.FormatTable,
		"table, json or yaml; the field names of json and yaml are stable")
	root.PersistentFlags().BoolVar(&asJSON, "json", false, "print the result as JSON, like -o json")
	root.SetFlagErrorFunc(cli.FlagError)
	for i := range measurements {
		root.AddCommand(measurements[i].command(&format))
	}
	root.AddCommand(rowstore.NewCommand(&format), rowstore.NewTierCommand(&format), mnist.NewCommand(&format),
		scoring.NewCommand(&format),
		redisload.NewCommand(), newProbeCommand())
	cli.MakeGroup(root)
	return root
}

// measurement is a command that measures a cluster.
type measurement struct {
	name, short, long, example string
	flags                      func(*pflag.FlagSet, *benchConfig) // the flags that only this command has
	run                        func(context.Context, benchConfig, io.Writer) (printer, error)
}

// printer is the result of a measurement.
type printer interface{ Print(io.Writer) error }

// as makes a measurement's function one that returns a printer.
func as[R printer](run func(context.Context, benchConfig, io.Writer) (R, error)) func(context.Context, benchConfig,
	io.Writer) (printer, error) {
	return func(ctx context.Context, cfg benchConfig, progress io.Writer) (printer, error) {
		return run(ctx, cfg, progress)
	}
}

var measurements = []measurement{
	{
		name: "pull", short: "Measure the rate of pulls", run: as(bench), flags: tableFlags,
		example: "  rowraft-bench pull --rows 1000000 --dim 16 --conns 4",
		long: `Measure the rate of pulls. With --endpoints it creates a table named bench.… on that cluster and
leaves it there.`,
	},
	{
		name: "push", short: "Measure the rate of pushes", run: as(bench), flags: tableFlags,
		example: "  rowraft-bench push --replicas 3 --optimizer adagrad --keys zipf --json",
		long: `Measure the rate of pushes. With --endpoints it creates a table named bench.… on that cluster and
leaves it there.`,
	},
	{
		name: "tails", short: "Measure what snapshots cost the pushes", run: as(benchTails),
		example: "  rowraft-bench tails --seconds 120 --snapshot-every 256MiB --check",
		long: `Push at saturation for --seconds while the replicas take snapshots, and print each second: the rate, the
latencies, the snapshots that were being written, and the longest fdatasync of a process that syncs 4 KiB
on the same disk every 10 ms. The bars: p99 at most twice p50, no push more than 100 ms longer than the
longest fdatasync of the probe, and at most 3 % of the rate of seconds without a snapshot lost.`,
		flags: func(fl *pflag.FlagSet, cfg *benchConfig) {
			fl.StringVar(&cfg.snapshotEvery, "snapshot-every", "512MiB", "log between two snapshots of a replica")
			checkFlag(fl, cfg)
		},
	},
	{
		name: "restart", short: "Measure how long a killed server is away", run: as(benchRestart),
		example: "  rowraft-bench restart --rows 5000000 --shards 4 --seconds 60",
		long: `Load all rows, push for --seconds, kill one of the servers (--kill all: each of them), and measure
the time until it serves again and has what the leaders had. With --away the others take pushes for
that long before it starts again, so that it needs their logs or snapshots.`,
		flags: func(fl *pflag.FlagSet, cfg *benchConfig) {
			fl.StringVar(&cfg.kill, "kill", "one", "which servers to kill, one or all")
			fl.Float64Var(&cfg.away, "away", 0, "seconds of pushes while one server is dead")
			memoryFlag(fl, cfg)
		},
	},
	{
		name: "checkpoint", short: "Measure what checkpoints cost during training", run: as(benchCheckpoint),
		example: "  rowraft-bench checkpoint --shards 4",
		long: `Push in windows of --seconds, every second one with a checkpoint in it, and print what share of the
throughput one checkpoint every 10 minutes costs.`,
	},
	{
		name: "stragglers", short: "Measure what one slow worker costs in each mode", run: as(benchStragglers),
		example: "  rowraft-bench stragglers --shards 4",
		long: `Train in the modes sync, sync with a quorum of 0.75, and async, with one of four workers slowed 10
times and without it; a step of the model is 50 ms of sleep. Each is measured for --seconds. It needs
rowraft-trainer in the directory of this binary or in PATH.`,
	},
	{
		name: "quality", short: "Measure what several trainers, and pushes in flight, cost the model", run: as(benchQuality),
		example: "  rowraft-bench quality --replicas 1 --pairs 20 --data sparse --check",
		long: `Train the same data with equal seeds in pairs: four trainers and one in mode async, four and one in
mode sync with one global batch, and one trainer with the defaults, with in_flight: 0 and with copies of
rows of up to 8 steps; or, with sparse-long, one trainer and four with such copies and without. It prints
the mean difference in the AUC of held-out examples with its 95 % interval, and the throughput. Data adult
and criteo are read from examples/data in the working directory (examples/README.md). It needs
rowraft-trainer in the directory of this binary or in PATH.`,
		flags: func(fl *pflag.FlagSet, cfg *benchConfig) {
			q := &cfg.quality
			fl.IntVar(&q.pairs, "pairs", 20, "how many seeds, from --seed on")
			fl.StringVar(&q.data, "data", "sparse", "sparse (a generated log of 10 fields with 500 ids each, 200,000 lines), "+
				"sparse-long (1.6 M lines, for what copies of rows cost one trainer and four), adult or criteo")
			fl.StringVar(&q.trainer, "trainer", "", "the rowraft-trainer binary (default: as that of the servers)")
			checkFlag(fl, cfg)
		},
	},
	{
		name: "cache", short: "Measure what copies of rows save a client", run: as(benchCache),
		example: "  rowraft-bench cache --check --json",
		long: `Pull batches of 26 features × 2,048 examples, each key once, from a table of --rows keys in one space,
with keys drawn uniformly and by Zipf 0.8, 1.0 and 1.2, and count the bytes on the client's connections:
without a cache, and with copies of up to 8 steps. A trainer pushes gradients of each row that it pulled;
next to a reader another client pushes. It has no ramp: the bound is 8 steps from the first batch.`,
		flags: func(fl *pflag.FlagSet, cfg *benchConfig) {
			fl.Int64Var(&cfg.cacheBytes, "cache-bytes", 64<<20, "memory of the copies")
			checkFlag(fl, cfg)
		},
	},
	{
		name: "scaling", short: "Measure the throughput of 1, 2 and 4 trainers", run: as(benchScaling),
		example: "  rowraft-bench scaling --batches 12000",
		long: `Train a long job in mode async with the defaults, with one, two and four trainers on this machine, and
print the examples per second of each half of the job. The first half has the ramp: a job begins with one
batch in flight and adds one after every 100 batches, until batch 300 with one trainer, and batch 1,500
with four. It needs rowraft-trainer in the directory of this binary or in PATH.`,
		flags: func(fl *pflag.FlagSet, cfg *benchConfig) {
			fl.IntVar(&cfg.batches, "batches", 6000, "batches of 512 examples of each job")
		},
	},
	{
		name: "hot", short: "Measure how hot keys load the servers", run: as(benchHot),
		example: "  rowraft-bench hot --check --json",
		long: `Read small batches of keys, uniform and by Zipf 0.8, 1.0 and 1.2, next to one writer of the same keys:
from the leaders, and with a bound from any server. It prints the rows that the hottest server
returned, relative to the rows that were read, with those that it returned to other servers, and how
much more than the mean that is. The keys of a read are drawn independently, as those of many users are. Figures are
the means of three tables, because chance decides which leader has the hottest keys of a table.`,
		flags: func(fl *pflag.FlagSet, cfg *benchConfig) {
			fl.IntVar(&cfg.servers, "servers", 6, "own servers to start, in place of --replicas; a shard has 3 replicas")
			fl.DurationVar(&cfg.maxAge, "max-age", 5*time.Second, "bound of the reads")
			fl.Lookup("batch").DefValue, cfg.batch = "64", 64
			fl.Lookup("warmup").DefValue, cfg.warmup = "2", 2
			fl.Lookup("seconds").DefValue, cfg.seconds = "4", 4
			checkFlag(fl, cfg)
		},
	},
	{
		name: "failover", short: "Measure how long pushes wait for a new leader", run: as(benchFailover),
		example: "  rowraft-bench failover --check --kills 40",
		long: `Disturb servers under a light load: kill −9 of the leader, planned transfers, moves and restarts,
disks that hang (if rowraft-faults is there: make build-faults), and kill −9 of a server that leads a
third of 12 shards. It prints how long pushes waited, what happened in the longest wait of each planned
change, and how many bounded reads were served meanwhile.`,
		flags: func(fl *pflag.FlagSet, cfg *benchConfig) {
			f := &cfg.failover
			fl.IntVar(&f.Kills, "kills", 40, "how often the leader is killed")
			fl.IntVar(&f.Transfers, "transfers", 20, "how often the lead is handed over")
			fl.IntVar(&f.Moves, "moves", 10, "how often the leader's replica moves to another server")
			fl.IntVar(&f.Restarts, "restarts", 12,
				"how many servers are stopped with SIGTERM and started again, one after the other")
			fl.IntVar(&f.Stalls, "stalls", 6, "how often the leader's disk hangs")
			fl.DurationVar(&f.StallLimit, "stall-limit", 0,
				"--disk-stall-limit of the servers, for a machine whose disk hangs by itself; 0: that of the profile")
			fl.IntVar(&f.Servers, "servers", 5, "how often a server that leads a third of the shards is killed")
			checkFlag(fl, cfg)
		},
	},
	{
		name: "sums", short: "Measure how much log the sums of hot writes save", run: as(benchSums), flags: checkFlag,
		example: "  rowraft-bench sums --conns 16 --batch 2048 --check",
		long: `Push the same batches from --conns writers to a table of optimizer sgd whose leader sums the gradients
of waiting pushes, and to one with a bound on its weights, whose leader does not. It prints the bytes of
log per push for keys that are uniform, or follow power laws with exponents 0.8, 1.0 and 1.2. Flags
--optimizer, --keys and --shards have no effect.`,
	},
	{
		name: "overload", short: "Measure servers that are offered ten times what they let in", run: as(benchOverload),
		flags: func(fl *pflag.FlagSet, cfg *benchConfig) {
			fl.Lookup("shards").DefValue, cfg.shards = "1", 1
			checkFlag(fl, cfg)
		},
		example: "  rowraft-bench overload --check --seconds 60",
		long: `Give servers a limit of 80 KiB in flight, measure what they let through, and offer ten times as much
for --seconds, from clients that ignore every hint. It prints what became of the leads, of memory, of
each push, and of clients that ask for little.`,
	},
}

func benchFailover(ctx context.Context, cfg benchConfig, progress io.Writer) (*failover.Result, error) {
	cfg.failover.Own, cfg.failover.Seed = *cfg.own(), cfg.seed
	return failover.Measure(ctx, cfg.failover, progress)
}

func checkFlag(fl *pflag.FlagSet, cfg *benchConfig) {
	fl.BoolVar(&cfg.strict, "check", false, "exit with code 3 if a figure misses its bar")
}

func endpointFlags(fl *pflag.FlagSet, cfg *benchConfig) {
	fl.StringSliceVar(&cfg.endpoints, "endpoints", nil, "measure this cluster: servers to ask, host:port, comma-separated")
	fl.StringVar(&cfg.files.Cert, "cert", "", "with --endpoints: certificate of this side, a PEM file")
	fl.StringVar(&cfg.files.Key, "key", "", "with --endpoints: private key of the certificate, a PEM file")
	fl.StringVar(&cfg.files.CA, "cacert", "",
		"with --endpoints: certificate of the CA that signed the servers', a PEM file")
	fl.BoolVar(&cfg.insecure, "insecure", false, "with --endpoints: plaintext instead of TLS")
}

// tableFlags are those of pull and push.
func tableFlags(fl *pflag.FlagSet, cfg *benchConfig) {
	endpointFlags(fl, cfg)
	memoryFlag(fl, cfg)
	fl.IntVar(&cfg.tables, "tables", 1, "tables, which share the rows and the keys of a call")
}

func memoryFlag(fl *pflag.FlagSet, cfg *benchConfig) {
	fl.StringVar(&cfg.memory, "memory", "",
		"memory of the table, for example 64MiB: other rows are on disk; default: all rows are in memory")
}

// connection checks the flags of a connection to a running cluster.
func (cfg *benchConfig) connection() error {
	switch {
	case len(cfg.endpoints) == 0 && (cfg.insecure || !cfg.files.IsZero()):
		return cli.Usagef("--insecure, --cert, --key and --cacert are for a cluster that runs: give --endpoints, too")
	case len(cfg.endpoints) > 0 && cfg.insecure == !cfg.files.IsZero():
		return cli.Usagef("--endpoints: give either --cert, --key and --cacert, or --insecure for servers that run with it")
	}
	cfg.tls = client.Options{TLS: cfg.files}
	return nil
}

func (m *measurement) command(format *string) *cobra.Command {
	cfg := benchConfig{op: m.name, tables: 1}
	cpuProfile := ""
	cmd := &cobra.Command{
		Use: m.name, Short: m.short, Long: m.long, Example: m.example, Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.connection(); err != nil {
				return err
			}
			stop, err := cli.StartProfile(cpuProfile)
			if err != nil {
				return err
			}
			defer stop()
			r, err := m.run(cmd.Context(), cfg, cmd.ErrOrStderr())
			if err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			err = cli.Show(cmd.OutOrStdout(), *format, r, func(w io.Writer, _ bool) error { return r.Print(w) })
			if b, ok := r.(interface{ Verdict(op string) error }); ok && cfg.strict && err == nil {
				err = b.Verdict(m.name)
			}
			return err
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&cfg.optimizer, "optimizer", "adagrad", cli.OrList(rowraft.OptimizerNames()))
	fl.IntVar(&cfg.rows, "rows", 1_000_000, "rows of the table, all of which exist")
	fl.IntVar(&cfg.dim, "dim", 16, "weights of a row")
	fl.IntVar(&cfg.batch, "batch", 8192, "distinct keys of a call")
	fl.IntVar(&cfg.conns, "conns", 4, "connections, each with one call at a time")
	fl.StringVar(&cfg.keys, "keys", "uniform", "uniform or zipf")
	fl.Float64Var(&cfg.zipfS, "zipf-s", 1.05, "exponent of the power law of --keys zipf")
	fl.StringVar(&cfg.dtype, "dtype", "float32", "numbers on the wire: float32 or bfloat16")
	fl.Float64Var(&cfg.seconds, "seconds", 10, "how long to measure")
	fl.Float64Var(&cfg.warmup, "warmup", 1, "seconds to run before measuring")
	fl.Uint64Var(&cfg.seed, "seed", 1, "of keys and values")
	fl.IntVar(&cfg.replicas, "replicas", 3, "own servers to start, each with a replica of every shard")
	fl.IntVar(&cfg.shards, "shards", scheduler.DefaultShards, "shards of the own servers, by default as many as "+
		"a new cluster has")
	fl.StringVar(&cfg.backend, "log-backend", "rowlog", "log of the own servers: rowlog or bolt")
	profile := "default"
	if m.name == "failover" {
		profile = "fast"
	}
	fl.StringVar(&cfg.profile, "profile", profile, "timers of the own servers: fast, default or dense")
	fl.StringVar(&cfg.serverBinary, "server", "",
		"the rowraft binary of the own servers (default: the one in the directory of this binary, or in PATH)")
	fl.StringVar(&cpuProfile, "cpu-profile", "", "write a CPU profile of the benchmark's own process to this file")
	fl.StringVar(&cfg.serverProfile, "server-cpu-profile", "",
		"write a CPU profile of the first own server, loading included, to this file")
	if m.flags != nil {
		m.flags(fl, &cfg)
	}
	return cmd
}
