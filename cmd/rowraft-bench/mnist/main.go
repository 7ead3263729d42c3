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

	"github.com/rowraft/rowraft/cmd/rowraft-bench/figures"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/scaffold"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/localcluster"
)

// config has the flags.
type config struct {
	job     string
	servers int
	epochs  int
	bar     float64 // accuracy on the held-out digits
	tilt    float64 // how far the first loss may be from ln 10
}

// result is the part of the trainer's result that is judged or printed.
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

// NewCommand returns the command mnist. Its output has the format.
func NewCommand(format *string) *cobra.Command {
	c := config{}
	cmd := &cobra.Command{
		Use:   "mnist",
		Short: "Train a LeNet on handwritten digits and hold its quality against bars",
		Long: `Train a LeNet on handwritten digits with all of its weights on servers of its own, and fail unless it
learns what such a network learns. It prints a line for each figure with its bar, and keeps nothing. The
trainer's progress goes to the standard error.`,
		Example: "  rowraft-bench mnist --epochs 3",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(cmd.Context(), c, figures.NewPrinter(cmd.OutOrStdout(), *format), cmd.ErrOrStderr())
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
func run(ctx context.Context, c config, p *figures.Printer, progress io.Writer) (err error) {
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
	fmt.Fprintf(progress, "%d servers; every weight of the LeNet is on them\n", c.servers)
	r, err := train(ctx, c, trainer, dir, cluster.Endpoints(), progress)
	if err != nil {
		return err
	}
	fmt.Fprintf(progress, "%d digits in %.0f s (%.0f/s); first loss %.4f; log loss %.4f on %d held-out digits\n",
		r.Examples, r.Seconds, r.ExamplesPerSecond, r.FirstLoss, r.LogLoss, r.HeldExamples)
	return c.judge(r, p)
}

// train runs the trainer.
func train(ctx context.Context, c config, trainer, dir string, endpoints []string,
	progress io.Writer) (*result, error) {
	file := filepath.Join(dir, "result.json")
	cmd := exec.CommandContext(ctx, trainer, "train", "--config", c.job, "--epochs", fmt.Sprint(c.epochs),
		"--endpoints", strings.Join(endpoints, ","), "--insecure", "--progress", "plain", "--json", file)
	cmd.Env = cli.WithoutFlags(os.Environ())
	cmd.Stdout, cmd.Stderr = progress, progress
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

// judge holds the result against the bars.
func (c *config) judge(r *result, p *figures.Printer) error {
	p.Add(figures.AtMost("first loss, distance from ln 10", math.Abs(r.FirstLoss-math.Ln10), "", c.tilt))
	p.Add(figures.AtLeast("accuracy on held-out digits", r.Accuracy, "", c.bar))
	p.Add(figures.Exactly("pushes acknowledged", float64(r.PushesAcknowledged), "pushes", float64(max(r.Steps, 1))))
	return p.Verdict()
}
