package scoring

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft-bench/figures"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/scaffold"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/localcluster"
)

// config has the flags.
type config struct {
	servers  int
	keys     int
	examples int // in each request
	rate     float64
	conns    int
	time     time.Duration
}

// NewCommand returns the command serve. Its output has the format.
func NewCommand(format *string) *cobra.Command {
	c := config{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Measure requests for predictions",
		Long: `Train a DLRM on a generated click log on servers of its own, serve it with rowraft-trainer serve, and ask for
predictions over HTTP (JSON and CSV) and gRPC: first --rate requests a second, each at its time whether or not others
were answered, with times from the moment at which a request was due; then --conns callers without a pause. A figure of
each is the number of requests that failed, whose bar is 0.`,
		Example: "  rowraft-bench serve --rate 200 --seconds 10s --json",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(cmd.Context(), &c, figures.NewPrinter(cmd.OutOrStdout(), *format), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	fl.IntVar(&c.servers, "servers", 3, "servers to start")
	fl.IntVar(&c.keys, "keys", 100_000, "different keys of each of the 8 categorical features")
	fl.IntVar(&c.examples, "examples", 20, "examples of a request")
	fl.Float64Var(&c.rate, "rate", 200, "requests a second of the first part")
	fl.IntVar(&c.conns, "conns", 16, "callers of the second part, each with one request at a time")
	fl.DurationVar(&c.time, "seconds", 10*time.Second, "how long each part is")
	return cmd
}

// lines is the number of lines from which requests are made.
const lines = 50_000

// run measures a model on a cluster of its own.
func run(ctx context.Context, c *config, p *figures.Printer, progress io.Writer) (err error) {
	if c.servers < 1 || c.keys < 1 || c.examples < 1 || c.examples > lines || !(c.rate > 0) || c.conns < 1 || c.time <= 0 {
		return cli.Usagef("--servers, --keys, --examples, --rate, --conns and --seconds: want more than 0, and at most %d "+
			"examples", lines)
	}
	trainer, err := localcluster.FindBinary("rowraft-trainer", "")
	if err != nil {
		return err
	}
	own := scaffold.Servers{Number: c.servers}
	cluster, dir, err := own.Start(ctx, 2*time.Minute, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop(), os.RemoveAll(dir)) }()
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(in("job.yaml"), []byte("job: served\n"), 0o600); err != nil {
		return err
	}
	endpoints := strings.Join(cluster.Endpoints(), ",")
	fmt.Fprintf(progress, "training on %d servers …\n", c.servers)
	for _, args := range [][]string{
		{"gen", "--examples", fmt.Sprint(lines), "--keys", fmt.Sprint(c.keys), "--out", in("log.csv"), "--schema",
			in("log.yaml")},
		{"train", "--config", in("job.yaml"), "--data", in("log.csv"), "--schema", in("log.yaml"), "--endpoints", endpoints,
			"--insecure", "--no-eval", "--progress", "none", "--save-model", in("model")},
	} {
		if out, err := command(ctx, trainer, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("rowraft-trainer %s: %w: %s", args[0], err, out)
		}
	}
	return serve(ctx, c, p, progress, in, trainer, endpoints)
}

func command(ctx context.Context, binary string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = cli.WithoutFlags(os.Environ())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd
}

// serve starts rowraft-trainer serve and measures it.
func serve(ctx context.Context, c *config, p *figures.Printer, progress io.Writer, in func(string) string, trainer,
	endpoints string) (err error) {
	http, err := localcluster.ReservePort()
	if err != nil {
		return err
	}
	grpc, err := localcluster.ReservePort()
	if err != nil {
		return errors.Join(err, http.Release())
	}
	defer func() { err = errors.Join(err, http.Release(), grpc.Release()) }()
	serving, stop := context.WithCancel(ctx)
	cmd := command(serving, trainer, "serve", in("model"), "--endpoints", endpoints, "--insecure", "--listen", http.Addr,
		"--grpc-listen", grpc.Addr)
	cmd.Stderr = progress
	if err := cmd.Start(); err != nil {
		stop()
		return err
	}
	defer func() {
		stop()
		if werr := cmd.Wait(); werr != nil && !errors.Is(werr, context.Canceled) {
			err = errors.Join(err, fmt.Errorf("rowraft-trainer serve: %w", werr))
		}
	}()
	text, err := os.ReadFile(in("log.csv"))
	if err != nil {
		return err
	}
	ways, err := newWays(http.Addr, grpc.Addr, requestsOf(string(text), c.examples))
	if err != nil {
		return err
	}
	if err := ways[0].await(ctx); err != nil {
		return err
	}
	for _, w := range ways {
		fmt.Fprintf(progress, "%s: warming up …\n", w.name)
		if _, err := w.saturate(ctx, c.conns, time.Second); err != nil {
			return err
		}
		fmt.Fprintf(progress, "%s: %g requests/s for %v …\n", w.name, c.rate, c.time)
		open, err := w.atRate(ctx, c.rate, c.time)
		if err != nil {
			return err
		}
		open.print(p, fmt.Sprintf("%s, %g requests/s: ", w.name, c.rate))
		fmt.Fprintf(progress, "%s: %d callers for %v …\n", w.name, c.conns, c.time)
		full, err := w.saturate(ctx, c.conns, c.time)
		if err != nil {
			return err
		}
		full.print(p, fmt.Sprintf("%s, %d callers: ", w.name, c.conns))
		p.Add(figures.Free(fmt.Sprintf("%s, %d callers: predictions", w.name, c.conns),
			float64(full.answered*c.examples)/full.seconds, "/s"))
	}
	return p.Verdict()
}
