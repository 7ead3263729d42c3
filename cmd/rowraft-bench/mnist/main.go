package mnist

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/localcluster"
)

// config is what the flags say.
type config struct {
	job     string
	servers int
	epochs  int
	bar     float64 // accuracy on the held-out digits
	tilt    float64 // how far the first loss may be from ln 10
}

// result is what of the trainer's own result is looked at.
type result struct {
	FirstLoss          float64 `json:"first_loss"`
	Accuracy           float64 `json:"accuracy"`
	LogLoss            float64 `json:"log_loss"`
	Steps              int64   `json:"steps"`
	Examples           int64   `json:"examples"`
	Seconds            float64 `json:"seconds"`
	ExamplesPerSecond  float64 `json:"examples_per_second"`
	HeldExamples       int     `json:"held_examples"`
	PushesAcknowledged int64   `json:"pushes_acknowledged"`
}

// NewCommand returns the command mnist.
func NewCommand() *cobra.Command {
	c := config{}
	cmd := &cobra.Command{
		Use:   "mnist",
		Short: "Train a LeNet on handwritten digits and hold its quality against bars",
		Long: `Train a LeNet on handwritten digits with all of its weights on servers of its own, and fail unless it
learns what such a network learns. It prints the trainer's progress and a line for each figure with its
bar, and keeps nothing.`,
		Example: "  rowraft-bench mnist --epochs 3",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(cmd.Context(), c, cmd.OutOrStdout())
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&c.job, "job", "examples/train-mnist.yaml", "the training job")
	fl.IntVar(&c.servers, "servers", 3, "servers to start")
	fl.IntVar(&c.epochs, "epochs", 3, "passes over the training digits")
	fl.Float64Var(&c.bar, "bar", 0.98, "least accuracy on the held-out digits")
	fl.Float64Var(&c.tilt, "first-loss-within", 0.05, "how far the first loss may be from ln 10")
	return cmd
}

// run trains on a cluster of its own and holds the result against the bars.
func run(ctx context.Context, c config, out io.Writer) (err error) {
	server, err := localcluster.FindBinary("rowraft", "")
	if err != nil {
		return err
	}
	trainer, err := localcluster.FindBinary("rowraft-trainer", "")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "rowraft-mnist-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	starting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cluster, err := localcluster.Start(starting, localcluster.Options{Binary: server, Dir: dir, Servers: c.servers})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	fmt.Fprintf(out, "%d servers; every weight of the LeNet is on them\n", c.servers)
	r, err := train(ctx, c, trainer, dir, cluster.Endpoints(), out)
	if err != nil {
		return err
	}
	return c.judge(r, out)
}

// train runs the trainer, whose progress goes to out.
func train(ctx context.Context, c config, trainer, dir string, endpoints []string, out io.Writer) (*result, error) {
	file := filepath.Join(dir, "result.json")
	cmd := exec.CommandContext(ctx, trainer, "train", "--config", c.job, "--epochs", fmt.Sprint(c.epochs),
		"--endpoints", strings.Join(endpoints, ","), "--insecure", "--progress", "plain", "--json", file)
	cmd.Env = cli.WithoutFlags(os.Environ())
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("rowraft-trainer: %w", err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &result{}
	return r, json.Unmarshal(text, r)
}

// judge prints what is held against a bar, and fails if one is missed.
func (c *config) judge(r *result, out io.Writer) error {
	var missed []string
	line := func(name, value, bar string, ok bool) {
		verdict := "ok"
		if !ok {
			verdict = "MISSED"
			missed = append(missed, name)
		}
		fmt.Fprintf(out, "%-32s %12s   %-24s %s\n", name, value, bar, verdict)
	}
	line("first loss", fmt.Sprintf("%.4f", r.FirstLoss), fmt.Sprintf("ln 10 = %.4f ± %g", math.Ln10, c.tilt),
		math.Abs(r.FirstLoss-math.Ln10) <= c.tilt)
	line("accuracy on held-out digits", fmt.Sprintf("%.4f", r.Accuracy), fmt.Sprintf("≥ %g in %d epochs", c.bar, c.epochs),
		r.Accuracy >= c.bar)
	line("pushes acknowledged", fmt.Sprint(r.PushesAcknowledged), fmt.Sprintf("= %d steps", r.Steps), r.Steps > 0 &&
		r.PushesAcknowledged == r.Steps)
	fmt.Fprintf(out, "%d digits in %.0f s (%.0f/s); log loss %.4f on %d held-out digits\n", r.Examples, r.Seconds,
		r.ExamplesPerSecond, r.LogLoss, r.HeldExamples)
	if len(missed) > 0 {
		return cli.Verdict(fmt.Errorf("missed: %s", strings.Join(missed, ", ")))
	}
	return nil
}
