package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/localcluster"
)

// jobName is the name of the demo's training job. The names of its tables begin with it.
const jobName = "demo"

// defaultSteps is how many batches each trainer runs on generated data.
const defaultSteps = 1500

// maxAhead is how many batches a trainer may be ahead in mode ssp.
const maxAhead = 3

func (d *run) dataName() string {
	if d.cfg.data != "" {
		return d.cfg.data
	}
	return "a generated click log"
}

// writeJob writes the trainers' job file.
func (d *run) writeJob() (path string, err error) {
	var b strings.Builder
	// The lease is long: no trainer is killed, and a suspended one must keep its rank, because the steps that it misses
	// in a synchronous mode are not counted as pushed.
	fmt.Fprintf(&b, "job: %s\nmode: %s\nlease: 2m\naudit: true\nevaluate: false\n", jobName, d.cfg.mode)
	if d.cfg.mode == "async" || d.cfg.mode == "ssp" {
		fmt.Fprint(&b, "cache: {bytes: 16MiB, staleness: {steps: 8}}\n")
	}
	if d.cfg.mode == "ssp" {
		fmt.Fprintf(&b, "staleness: %d\n", maxAhead)
	}
	if d.cfg.data != "" {
		fmt.Fprintf(&b, "data:\n  file: %q\n  schema: %q\n", absolute(d.cfg.data), absolute(d.cfg.schema))
		if d.cfg.steps > 0 {
			fmt.Fprintf(&b, "steps: %d\n", d.cfg.steps)
		}
	} else {
		steps := d.cfg.steps
		if steps == 0 {
			steps = defaultSteps
		}
		// The data have no end here: the trainers stop after their steps.
		fmt.Fprintf(&b, "steps: %d\ngenerator:\n  examples: 0\n", steps)
	}
	path = filepath.Join(d.dir, "job.yaml")
	return path, os.WriteFile(path, []byte(b.String()), 0o600)
}

// absolute returns an absolute path if that is possible.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// evaluate scores the held-out data with the present rows.
func (d *run) evaluate(ctx context.Context, r *result) error {
	out := filepath.Join(d.dir, "evaluation.json")
	cmd := exec.CommandContext(ctx, d.cfg.trainerBinary, "evaluate", "--config", filepath.Join(d.dir, "job.yaml"),
		"--endpoints", strings.Join(d.cluster.Endpoints(), ","), "--insecure", "--trainers", fmt.Sprint(d.cfg.trainers),
		"--json", out)
	cmd.Env = cli.WithoutFlags(os.Environ())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("evaluation: %w\n%s", err, b)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		return err
	}
	var e localcluster.TrainerResult
	if err := json.Unmarshal(b, &e); err != nil {
		return fmt.Errorf("evaluation: %w", err)
	}
	r.AUC, r.BestAUC, r.LogLoss = e.AUC, e.BestAUC, e.LogLoss
	return nil
}
