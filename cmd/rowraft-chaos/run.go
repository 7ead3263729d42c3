package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/e2e/chaos"
	"github.com/rowraft/rowraft/e2e/cluster"
	"github.com/rowraft/rowraft/e2e/nemesis"
	"github.com/rowraft/rowraft/internal/cli"
)

// config is the configuration of a run.
type config struct {
	chaos.Config

	jsonPath, ledger, binary string
	keep                     bool
}

func newRunCmd() *cobra.Command {
	c := config{Config: chaos.Config{Version: version}}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run clients and faults against a new cluster, then check",
		Long: `Start servers behind proxies, let clients push counters and read them, and inject faults drawn from the
seed, one at a time and two at once. A round takes about half a minute. First come the faults (safety).
Then all faults end, every client must have a push acknowledged, and every replica must catch up (liveness).
Then all rows and the digests of all replicas are compared.

With --tier A the servers run in this process, on a network in memory and in virtual time.

The exit code is 0 only if there is no violation and enough faults had an effect. Otherwise it is 3, and the
directory is kept.`,
		Example: `  rowraft-chaos run --seed 7 --for 60s
  rowraft-chaos run --seed 7 --for 60s --faults kill-leader,deaf-leader
  rowraft-chaos run --tier A --seed 7 --for 10m`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.Tier == "A" {
				c.lighten(cmd.Flags().Changed)
			}
			if err := c.check(); err != nil {
				return err
			}
			v := cli.NewRunView(cmd.ErrOrStderr())
			res, err := run(cmd.Context(), &c, v)
			v.Done()
			if err != nil {
				return err
			}
			if c.jsonPath != "" {
				if err := cli.WriteJSON(c.jsonPath, res); err != nil {
					return err
				}
			}
			if c.ledger != "" {
				if err := res.appendLedger(c.ledger); err != nil {
					return err
				}
			}
			res.print(cmd.OutOrStdout())
			if !res.OK {
				return errVerdict
			}
			return nil
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&c.Tier, "tier", "B", "B: real processes and proxies; A: whole servers in this process, in virtual time")
	fl.Uint64Var(&c.Seed, "seed", 0, "seed of the schedule; 0: from the clock")
	fl.DurationVar(&c.For, "for", time.Minute, "how long faults are done; in virtual time with tier A")
	fl.StringVar(&c.Faults, "faults", "all", "all, or kinds separated by commas ('rowraft-chaos faults' lists them)")
	fl.IntVar(&c.Clients, "clients", 8, "clients that push, 1 to 64")
	fl.IntVar(&c.Rows, "rows", 16, "rows they push to, 1 to 4096")
	fl.IntVar(&c.Servers, "servers", 3, "servers, 3 to 5")
	fl.IntVar(&c.Shards, "shards", 2, "shards, 1 to 16")
	fl.IntVar(&c.Slots, "slots", 0, "slots of the cluster; 0: by the seed, 4096, 16384 or 65536")
	fl.IntVar(&c.Rate, "rate", 100, "calls a second of each client at most; 0: as fast as it goes")
	fl.StringVar(&c.Backend, "log-backend", "", "rowlog or bolt; default: by the seed")
	fl.StringVar(&c.Profile, "profile", "fast", "Raft timers: fast, default or dense")
	fl.StringVar(&c.Dir, "dir", "",
		"new directory for data, logs and history, kept; default: a temporary one, kept on failure")
	fl.StringVar(&c.jsonPath, "json", "", "also write the result as JSON to this file")
	fl.StringVar(&c.ledger, "ledger", "", "append the run as a line to this page (docs/reliability-ledger.md)")
	fl.StringVar(&c.binary, "binary", "",
		"server binary; default: rowraft-faults in the directory of this program, which can inject disk faults (make "+
			"chaos builds it), or rowraft")
	return cmd
}

// run does a whole run and judges it. An error means that the run could not complete; violations are in the result.
func run(ctx context.Context, cfg *config, v *cli.RunView) (*result, error) {
	res := &result{Schema: jsonSchema, Config: cfg.Config, Reproduce: cfg.reproduce(), Dir: cfg.Dir}
	began := time.Now()
	v.Event("seed %d, directory %s", cfg.Seed, cfg.Dir)
	do := res.runProcesses
	if cfg.Tier == "A" {
		do = res.runSim
	}
	err := do(ctx, cfg, v)
	res.Seconds = time.Since(began).Seconds()
	if err == nil {
		err = res.Judge(cfg.Config)
	}
	if ctx.Err() != nil && cfg.Tier == "A" {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w; everything is kept in %s; again: %s", err, cfg.Dir, cfg.reproduce())
	}
	res.OK = len(res.Problems) == 0
	if res.OK && !cfg.keep {
		res.Dir = ""
		return res, os.RemoveAll(cfg.Dir)
	}
	return res, cli.WriteJSON(filepath.Join(cfg.Dir, resultFile), res)
}

// resultFile is the result, in the directory of a run.
const resultFile = "result.json"

func (r *result) runSim(ctx context.Context, cfg *config, v *cli.RunView) error {
	c := cfg.Config
	c.Log = func(line string) { v.Line(line + " (virtual)") }
	out, err := startSim(ctx, c)
	if err != nil {
		return err
	}
	r.Result, r.Virtual = *out, out.Took.Seconds()
	return nil
}

func (r *result) runProcesses(ctx context.Context, cfg *config, v *cli.RunView) error {
	c := cfg.Config
	c.Log = v.Line
	c.Progress = func(elapsed time.Duration, text string) { v.Progress(int64(elapsed), int64(cfg.For), text) }
	before, p := ownUsage(), &processes{binary: cfg.binary}
	out, err := chaos.Start(ctx, c, p)
	if err != nil {
		return err
	}
	r.Result, r.Before, r.After = *out, p.most, p.mostNow
	if err := nothingLeft(cfg.Dir, before); err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
	return nil
}

func (c *config) check() error {
	switch {
	case c.Tier != "A" && c.Tier != "B":
		return cli.Usagef("--tier %q: want A or B", c.Tier)
	case c.For < 5*time.Second:
		return cli.Usagef("--for %v: want 5s or more", c.For)
	case c.Clients < 1 || c.Clients > 64:
		return cli.Usagef("--clients %d: want 1 to 64", c.Clients)
	case c.Rows < c.Shards || c.Rows > 4096:
		return cli.Usagef("--rows %d: want one for each shard at least, and 4096 at most", c.Rows)
	case c.Servers < 3 || c.Servers > 5:
		return cli.Usagef("--servers %d: want 3 to 5", c.Servers)
	case c.Shards < 1 || c.Shards > 16:
		return cli.Usagef("--shards %d: want 1 to 16", c.Shards)
	case c.Rate < 0:
		return cli.Usagef("--rate %d: want 0 or more", c.Rate)
	}
	if _, err := nemesis.Pick(c.Faults, c.Tier == "A"); err != nil {
		return err
	}
	if c.ledger != "" {
		if _, err := os.Stat(c.ledger); err != nil {
			return cli.Usagef("--ledger: %w", err)
		}
	}
	if c.Seed == 0 {
		c.Seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	if c.Slots == 0 {
		c.Slots = chaos.SlotsOf(c.Seed)
	}
	if c.Tier == "A" {
		if c.Backend == "bolt" {
			return cli.Usagef("--log-backend bolt: the disks of tier A are in memory, and bolt maps its file")
		}
		c.Backend = cmp.Or(c.Backend, "rowlog")
	}
	if c.Backend == "" {
		c.Backend = []string{"rowlog", "bolt"}[c.Seed%2]
	}
	if err := c.findBinary(); err != nil {
		return err
	}
	c.keep = c.Dir != ""
	if c.Dir == "" {
		dir, err := os.MkdirTemp(c.tempDir(), "rowraft-chaos-")
		if err != nil {
			return err
		}
		c.Dir = dir
	} else if err := makeEmpty(c.Dir); err != nil {
		return err
	}
	return nil
}

// lighten replaces defaults that the user has not set by values that are fast in virtual time, where only
// processor time matters.
func (c *config) lighten(set func(flag string) bool) {
	for name, f := range map[string]func(){
		"clients": func() { c.Clients = 4 }, "rows": func() { c.Rows = 8 }, "rate": func() { c.Rate = 20 },
	} {
		if !set(name) {
			f()
		}
	}
}

// tempDir returns the parent directory for runs: in memory for tier A, if possible, since a disk does not
// follow virtual time.
func (c *config) tempDir() string {
	const memory = "/dev/shm"
	if _, err := os.Stat(memory); c.Tier == "A" && err == nil {
		return memory
	}
	return ""
}

// findBinary finds the server binary, which tier A does not need.
func (c *config) findBinary() error {
	if c.Tier == "A" {
		return nil
	}
	if c.binary == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		c.binary = filepath.Join(filepath.Dir(self), "rowraft")
		if faulty := c.binary + "-faults"; exists(faulty) {
			c.binary = faulty
		}
	}
	if _, err := os.Stat(c.binary); err != nil {
		return cli.Usagef("no rowraft binary: %w: run `make build`, or give --binary", err)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// makeEmpty creates dir; if it exists, it must be empty.
func makeEmpty(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		return cli.Usagef("--dir %s is not empty", dir)
	}
	return err
}

// reproduce returns the command line that runs the same schedule again.
func (c *config) reproduce() string {
	return fmt.Sprintf("rowraft-chaos run --tier %s --seed %d --for %v --faults %s --clients %d --rows %d --servers "+
		"%d --shards %d --slots %d --rate %d --log-backend %s --profile %s",
		c.Tier, c.Seed, c.For, c.Faults, c.Clients, c.Rows, c.Servers, c.Shards, c.Slots, c.Rate, c.Backend, c.Profile)
}

func newFaultsCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "faults",
		Short: "List the kinds of faults",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			kinds := nemesis.Kinds()
			for _, k := range slices.Sorted(maps.Keys(kinds)) {
				fmt.Fprintf(cmd.OutOrStdout(), "%-20s %s\n", k, kinds[k])
			}
			return nil
		},
	}
}

// result is the contract of --json.
type result struct {
	Schema  string       `json:"schema"`
	Config  chaos.Config `json:"config"`
	OK      bool         `json:"ok"`
	Seconds float64      `json:"seconds"`
	Virtual float64      `json:"virtual_seconds,omitempty"` // tier A
	chaos.Result
	Before    cluster.Usage `json:"usage_before"` // the largest values of any server; tier B
	After     cluster.Usage `json:"usage_after"`
	Dir       string        `json:"dir,omitempty"`
	Reproduce string        `json:"reproduce"`
}

const jsonSchema = "rowraft/v1"

func (r *result) print(w io.Writer) {
	const row = "%-20s %6d %9d %11d\n"
	fmt.Fprintf(w, "%-20s %6s %9s %11s\n", "fault", "tried", "observed", "until heal")
	stood := 0
	for _, k := range slices.Sorted(maps.Keys(r.Faults)) {
		n := r.Faults[k]
		fmt.Fprintf(w, row, k, n.Tried, n.Observed, n.Stood)
		stood += n.Stood
	}
	fmt.Fprintf(w, row+"\n", "all", r.Tried, r.Observed, stood)
	fmt.Fprintf(w, "seed %d, log backend %s, %d rounds, %.0f s: %d pushes, %d acknowledged, %d reads, %d terms\n",
		r.Config.Seed, r.Config.Backend, r.Rounds, r.Seconds, r.Pushes, r.Acks, r.Pulls, r.Terms)
	fmt.Fprintf(w, "after the heal, p50: first push of a shard %v; of every client %v; replicas caught up %v; servers "+
		"serve %v\n", r.Recovery.FirstPush, r.Recovery.AllClients, r.Recovery.CatchUp, r.Recovery.Serving)
	fmt.Fprintf(w, "longest time without an acknowledged push %.2f s\n", r.Gap)
	if r.Virtual > 0 {
		fmt.Fprintf(w, "%.0f s of virtual time in %.1f s: %.0f times as fast\n\n", r.Virtual, r.Seconds, r.Virtual/r.Seconds)
	} else {
		fmt.Fprintf(w, "a server before: %s; after: %s\n\n", usageLine(r.Before), usageLine(r.After))
	}
	for _, v := range r.Verdicts {
		fmt.Fprintln(w, v)
	}
	fmt.Fprintf(w, "checked %d operations: %d updates lost, %d doubled, %d shards diverged, %d violations\n",
		r.Checked, r.Lost, r.Doubled, r.Diverged, len(r.Problems))
	for i, p := range r.Problems {
		if i == chaos.ShownProblems {
			fmt.Fprintf(w, "WRONG: %d more in result.json\n", len(r.Problems)-i)
			break
		}
		fmt.Fprintf(w, "WRONG: %s\n", strings.TrimSpace(p))
	}
	if r.Dir != "" {
		fmt.Fprintf(w, "kept: %s\n", r.Dir)
	}
	if !r.OK {
		fmt.Fprintf(w, "again: %s\n", r.Reproduce)
	}
}
