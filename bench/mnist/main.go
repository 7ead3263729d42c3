package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rowraft/rowraft/internal/flagenv"
	"github.com/rowraft/rowraft/internal/localcluster"
)

// config is what the flags say.
type config struct {
	bin, job string
	servers  int
	epochs   int
	bar      float64 // accuracy on the held-out digits
	tilt     float64 // how far the first loss may be from ln 10
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

func main() {
	c := config{}
	flag.StringVar(&c.bin, "bin", "bin", "directory with rowraft and rowraft-trainer")
	flag.StringVar(&c.job, "job", "examples/train-mnist.yaml", "the training job")
	flag.IntVar(&c.servers, "servers", 3, "servers to start")
	flag.IntVar(&c.epochs, "epochs", 3, "passes over the training digits")
	flag.Float64Var(&c.bar, "bar", 0.98, "least accuracy on the held-out digits")
	flag.Float64Var(&c.tilt, "first-loss-within", 0.05, "how far the first loss may be from ln 10")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, c, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mnist:", err)
		os.Exit(1)
	}
}

// run trains on a cluster of its own and holds the result against the bars.
func run(ctx context.Context, c config, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "rowraft-mnist-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	starting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cluster, err := localcluster.Start(starting, localcluster.Options{Binary: filepath.Join(c.bin, "rowraft"), Dir: dir, Servers: c.servers})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	fmt.Fprintf(out, "%d servers; every weight of the LeNet is on them\n", c.servers)
	r, err := train(ctx, c, dir, cluster.Endpoints(), out)
	if err != nil {
		return err
	}
	return c.judge(r, out)
}

// train runs the trainer, whose progress goes to out.
func train(ctx context.Context, c config, dir string, endpoints []string, out io.Writer) (*result, error) {
	file := filepath.Join(dir, "result.json")
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "rowraft-trainer"), "train", "--config", c.job, "--epochs", fmt.Sprint(c.epochs),
		"--endpoints", strings.Join(endpoints, ","), "--insecure", "--progress", "plain", "--json", file)
	cmd.Env = flagenv.Without(os.Environ())
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
	line("first loss", fmt.Sprintf("%.4f", r.FirstLoss), fmt.Sprintf("ln 10 = %.4f ± %g", math.Ln10, c.tilt), math.Abs(r.FirstLoss-math.Ln10) <= c.tilt)
	line("accuracy on held-out digits", fmt.Sprintf("%.4f", r.Accuracy), fmt.Sprintf("≥ %g in %d epochs", c.bar, c.epochs), r.Accuracy >= c.bar)
	line("pushes acknowledged", fmt.Sprint(r.PushesAcknowledged), fmt.Sprintf("= %d steps", r.Steps), r.Steps > 0 && r.PushesAcknowledged == r.Steps)
	fmt.Fprintf(out, "%d digits in %.0f s (%.0f/s); log loss %.4f on %d held-out digits\n", r.Examples, r.Seconds, r.ExamplesPerSecond, r.LogLoss, r.HeldExamples)
	if len(missed) > 0 {
		return fmt.Errorf("missed: %s", strings.Join(missed, ", "))
	}
	return nil
}
