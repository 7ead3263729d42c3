package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/localcluster"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func newBenchCmd(g *globals) *cobra.Command {
	cfg := benchConfig{}
	var asJSON bool
	var cpuProfile string
	cmd := &cobra.Command{
		Use:   "bench pull|push|restart|checkpoint|stragglers|failover|overload",
		Short: "Measure pulls, pushes, restarts, checkpoints, slow workers, failovers or overload, on a cluster or on servers of its own",
		Long: `Measure the rate of pulls or pushes. Without --endpoints it starts its own servers as
processes on loopback and removes them and their data afterwards; with --endpoints it
creates a table named bench.… there and leaves it.

restart loads all rows, pushes for --seconds, kills one of its own servers, or --kill all,
and measures the time until it serves and has what the leaders had.

checkpoint pushes in windows of --seconds, every second one with a checkpoint in it, and tells what share of the
throughput one every 10 minutes costs.

stragglers trains in modes sync, sync with a quorum of 0.75, and async, with one of four workers slowed 10 times, and
without it; a step of the model is 50 ms of sleep. It measures each for --seconds and needs rowraft-trainer.

failover disturbs its own servers under a light load: kill −9 of the leader, planned transfers, moves and restarts, disks
that hang (with bin/rowraft-faults), and kill −9 of a server that leads a third of 12 shards; it tells how long pushes
waited, what happened in the longest wait of each planned change, and how many bounded reads were served beside it all. Its --profile is fast unless told otherwise.

overload gives its own servers limits of 80 KiB in flight, measures what they let through, and offers ten times as much for
--seconds, from clients that heed no hint; it tells what became of the leads, of memory, of each push, and of clients that ask for little.

Each connection sends one call of --batch distinct keys after the other. A push is
counted when it is acknowledged: on the disks of a majority, and applied.`,
		Example: `  rowraft bench pull --rows 1000000 --dim 16 --conns 4
  rowraft bench push --replicas 3 --optimizer adagrad --keys zipf --json`,
		ValidArgs: []string{"pull", "push", "restart", "checkpoint", "stragglers", "failover", "overload"},
		Args:      oneArg("pull, push, restart, checkpoint, stragglers, failover or overload"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg.op = args[0]
			if !slices.Contains(cmd.ValidArgs, cfg.op) {
				return usagef("bench %q: want one of %s", cfg.op, strings.Join(cmd.ValidArgs, ", "))
			}
			if cmd.Flags().Changed("endpoints") {
				if _, err := g.clientTLS(); err != nil {
					return err
				}
				cfg.endpoints, cfg.tls = g.endpoints, client.Options{TLS: g.tls}
			}
			if cfg.op == "failover" && !cmd.Flags().Changed("profile") {
				cfg.profile = "fast"
			}
			stop, err := startProfile(cpuProfile)
			if err != nil {
				return err
			}
			defer stop()
			r, err := benchOp(cmd.Context(), cfg, cmd.ErrOrStderr())
			if err != nil {
				return fmt.Errorf("bench %s: %w", cfg.op, err)
			}
			format := g.output
			if asJSON {
				format = formatJSON
			}
			err = show(cmd.OutOrStdout(), format, r, func(w io.Writer, _ bool) error { return r.print(w) })
			if f, ok := r.(interface{ verdict() error }); ok && cfg.failover.check && err == nil {
				err = f.verdict()
			}
			return err
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&cfg.optimizer, "optimizer", "adagrad", orList(rowraft.OptimizerNames()))
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
	fl.IntVar(&cfg.shards, "shards", 1, "shards of the own servers")
	fl.StringVar(&cfg.backend, "log-backend", "rowlog", "log of the own servers: rowlog or bolt")
	fl.StringVar(&cfg.kill, "kill", "one", "restart: which own servers to kill, one or all")
	fl.StringVar(&cfg.profile, "profile", "default", "timers of the own servers: fast, default or dense")
	fl.IntVar(&cfg.failover.kills, "kills", 40, "failover: how often the leader is killed")
	fl.IntVar(&cfg.failover.transfers, "transfers", 20, "failover: how often the lead is handed over")
	fl.IntVar(&cfg.failover.moves, "moves", 10, "failover: how often the leader's replica moves to another server")
	fl.IntVar(&cfg.failover.restarts, "restarts", 12, "failover: how many servers are stopped with SIGTERM and started again, one after the other")
	fl.IntVar(&cfg.failover.stalls, "stalls", 6, "failover: how often the leader's disk hangs")
	fl.DurationVar(&cfg.failover.stallLimit, "stall-limit", 0, "failover: --disk-stall-limit of the servers, for a machine whose disk hangs by itself; 0: that of the profile")
	fl.IntVar(&cfg.failover.nodes, "nodes", 5, "failover: how often a server that leads a third of the shards is killed")
	fl.BoolVar(&cfg.failover.check, "check", false, "failover, overload: end with code 3 if a figure is above its bar")
	fl.BoolVar(&asJSON, "json", false, "print the result as JSON, like -o json")
	fl.StringVar(&cpuProfile, "cpu-profile", "", "write a CPU profile of the benchmark's own process to this file")
	fl.StringVar(&cfg.serverProfile, "server-cpu-profile", "", "write a CPU profile of the first own server, loading included, to this file")
	return cmd
}

// printer is what a benchmark found.
type printer interface{ print(io.Writer) error }

func benchOp(ctx context.Context, cfg benchConfig, progress io.Writer) (printer, error) {
	switch cfg.op {
	case "restart":
		return benchRestart(ctx, cfg, progress)
	case "checkpoint":
		return benchCheckpoint(ctx, cfg, progress)
	case "stragglers":
		return benchStragglers(ctx, cfg, progress)
	case "failover":
		return benchFailover(ctx, cfg, progress)
	case "overload":
		return benchOverload(ctx, cfg, progress)
	}
	return bench(ctx, cfg, progress)
}

func startProfile(path string) (stop func(), err error) {
	if path == "" {
		return func() {}, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, err
	}
	return func() {
		pprof.StopCPUProfile()
		f.Close()
	}, nil
}

// print writes the result for a person.
func (r *benchResult) print(w io.Writer) error {
	pairs := []string{
		"rate", humanize.SIWithDigits(r.RowsPerSecond, 2, "rows/s"),
		"latency", fmt.Sprintf("p50 %.2f ms, p99 %.2f ms, max %.2f ms", r.P50, r.P99, r.Max),
		"calls", fmt.Sprintf("%s of %d rows in %.1f s, %d connections", count(uint64(r.Calls)), r.Batch, r.Seconds, r.Conns),
	}
	if r.ServerCPU != nil {
		pairs = append(pairs, "CPU", fmt.Sprintf("servers %.3f s, client %.3f s per million rows", *r.ServerCPU, *r.ClientCPU))
	}
	if r.BytesPerRow != nil {
		pairs = append(pairs, "memory", fmt.Sprintf("%.0f bytes a row on each replica", *r.BytesPerRow))
	}
	return facts(w, append(pairs,
		"table", fmt.Sprintf("%s rows, dim %d, %s, %s keys, %s on the wire", count(uint64(r.Rows)), r.Dim, r.Optimizer, r.Keys, r.DType),
		"servers", fmt.Sprintf("%s, %s, log %s", plural(r.Replicas, "replica"), plural(r.Shards, "shard"), r.Backend),
		"machine", fmt.Sprintf("%d cores, %s, %s", r.Cores, r.CPU, r.GoVersion))...)
}

// bytesPerRow asks one server of its own how much memory the table takes there.
func bytesPerRow(ctx context.Context, c *localcluster.Cluster, w *benchWorker) (*float64, error) {
	if c == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	st, err := awaitStatus(ctx, c.Servers()[0].Addr)
	if err != nil {
		return nil, err
	}
	id := uint64(w.t.Schema().ID)
	var sum rowraftv1.TableStats
	for _, r := range st.Replicas {
		for _, t := range r.Tables {
			if t.Table == id {
				sum.Rows += t.Rows
				sum.MemoryBytes += t.MemoryBytes
			}
		}
	}
	if sum.Rows == 0 {
		return nil, nil
	}
	per := float64(sum.MemoryBytes) / float64(sum.Rows)
	return &per, nil
}
