package demo

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/localcluster"
)

// NewCmd returns the command `rowraft demo`.
func NewCmd(g *remote.Flags) *cobra.Command {
	cfg := config{}
	jsonPath := ""
	noKill := false
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Train a recommender on a cluster of processes here, kill a leader, check everything",
		Long: `Start servers and trainers as processes on this machine, train a DLRM on a generated
click log (or on your own data), send kill -9 to the server that leads the most shards
half-way, restart it later, and count: acknowledged pushes that were lost, pushes that
were applied twice, replicas that agree. In modes async and ssp the trainers keep copies
of hot rows, and the demo prints what they did not have to pull. At the end everything is removed; logs and data
are kept if something was wrong.

Exit code 0 only if nothing was lost or doubled, all replicas agree, and the AUC is
within 0.03 of the best possible; 3 otherwise.`,
		Example: `  rowraft demo
  rowraft demo --data clicks.csv --schema clicks.yaml --json result.json`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.kill = !noKill
			if err := cfg.check(); err != nil {
				return err
			}
			if _, err := os.Stat(filepath.Dir(jsonPath)); err != nil { // fail now, not after the run
				return cli.Usagef("--json %s: %w", jsonPath, err)
			}
			r, err := runAll(cmd.Context(), cfg, cmd.ErrOrStderr())
			if err != nil {
				return fmt.Errorf("demo: %w", err)
			}
			if jsonPath != "" {
				if err := cli.WriteJSON(jsonPath, r); err != nil {
					return err
				}
			}
			if err := cli.Show(cmd.OutOrStdout(), g.Output, r,
				func(w io.Writer, _ bool) error { return r.print(w) }); err != nil {
				return err
			}
			if !r.OK {
				return cli.Verdict(errors.New("demo: the run has shown something wrong, see above"))
			}
			return nil
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&jsonPath, "json", "", "also write the result as JSON to this file")
	fl.StringVar(&cfg.data, "data", "", "train on this file instead of a generated click log; needs --schema")
	fl.StringVar(&cfg.schema, "schema", "", "YAML file that describes --data (examples/)")
	fl.Int64Var(&cfg.steps, "steps", 0, fmt.Sprintf("batches of each trainer; 0: %d, or one pass over --data",
		defaultSteps))
	fl.IntVar(&cfg.servers, "servers", 3, "servers to start, 1 to 9; fewer than 3 cannot survive the kill")
	fl.IntVar(&cfg.shards, "shards", 4, "shards of the tables, 1 to 64")
	fl.IntVar(&cfg.trainers, "trainers", 2, "trainers to start, 1 to 16")
	fl.StringVar(&cfg.mode, "mode", "async", "training mode: "+strings.Join(modes, ", "))
	fl.StringVar(&cfg.backend, "log-backend", "rowlog", "log of the shards: rowlog or bolt")
	fl.StringVar(&cfg.trainerBinary, "trainer-binary", "",
		"path of rowraft-trainer; default: the directory of this program, then PATH")
	fl.BoolVar(&noKill, "no-kill", false, "kill no server")
	fl.BoolVar(&cfg.keep, "keep", false, "keep logs and data, and say where they are")
	return cmd
}

// modes are the training modes of the demo.
var modes = []string{"async", "sync", "ssp", "geo"}

func (c *config) check() error {
	switch {
	case c.servers < 1 || c.servers > 9:
		return cli.Usagef("--servers %d: want 1 to 9", c.servers)
	case c.servers < 3 && c.kill:
		return cli.Usagef("--servers %d: a cluster of fewer than 3 cannot continue without its leader: add --no-kill",
			c.servers)
	case c.shards < 1 || c.shards > 64:
		return cli.Usagef("--shards %d: want 1 to 64", c.shards)
	case c.trainers < 1 || c.trainers > 16:
		return cli.Usagef("--trainers %d: want 1 to 16", c.trainers)
	case c.steps < 0:
		return cli.Usagef("--steps %d: want 0 or more", c.steps)
	case !slices.Contains(modes, c.mode):
		return cli.Usagef("--mode %q: want one of %s", c.mode, strings.Join(modes, ", "))
	case (c.data == "") != (c.schema == ""):
		return cli.Usagef("--data and --schema belong together: one of them is missing")
	}
	for _, file := range []struct{ flag, path string }{{"--data", c.data}, {"--schema", c.schema}} {
		if file.path == "" {
			continue
		}
		if _, err := os.Stat(file.path); err != nil {
			return cli.Usagef("%s: %w", file.flag, err)
		}
	}
	return nil
}

// print writes the result as text.
func (r *result) print(w io.Writer) error {
	known := func(n localcluster.Number, format string) string {
		if !n.Known() {
			return "–"
		}
		return fmt.Sprintf(format, float64(n))
	}
	reused := "–"
	if all := r.RowsReused + r.RowsPulled; all > 0 {
		reused = fmt.Sprintf("%.1f %% of %s, %s less to pull", 100*float64(r.RowsReused)/float64(all), cli.Count(uint64(all)),
			humanize.IBytes(uint64(r.BytesSaved)))
	}
	err := cli.Facts(w,
		"AUC", known(r.AUC, "%.4f"),
		"best possible AUC", known(r.BestAUC, "%.4f"),
		"examples/s", known(r.ExamplesPerSecond, "%.0f"),
		"rows from the trainers' caches", reused,
		"kill to next acknowledged push", known(r.FailoverSeconds, "%.2f s"),
		"restart to caught up", known(r.CatchUpSeconds, "%.2f s"),
		"pushes acknowledged", cli.Count(uint64(r.PushesAcknowledged)),
		"lost", cli.Count(uint64(r.PushesLost)),
		"applied twice", cli.Count(uint64(r.PushesDuplicated)),
		"replicas that agree", fmt.Sprintf("%d of %d", r.ReplicasSame, r.Replicas),
		"time", fmt.Sprintf("%.0f s", r.Seconds),
	)
	for _, p := range r.Problems {
		fmt.Fprintf(w, "WRONG: %s\n", p)
	}
	return err
}
