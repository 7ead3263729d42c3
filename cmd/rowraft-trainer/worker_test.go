package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/launch"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/trainer"
)

// ended returns the id of a process that has ended.
func ended(t *testing.T) int {
	t.Helper()
	c := exec.Command(os.Args[0], "-test.run", "^$")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	return c.Process.Pid
}

func TestWhichWorkersHaveEnded(t *testing.T) {
	gone := processName(ended(t))
	host, _ := os.Hostname()
	elsewhere := host + gone[strings.LastIndex(gone, "-pid"):] // as it may be called in another container
	for worker, want := range map[string]bool{gone: true, processName(os.Getpid()): false, "other-" + gone: false,
		elsewhere: false, "rank-0": false, "": false, gone + "x": false} {
		if got := endedHere(worker); got != want {
			t.Errorf("worker %q has ended: %v, want %v", worker, got, want)
		}
	}
}

// enterAsEnded makes a process that has ended a worker of the job, without a name of its own.
func enterAsEnded(t *testing.T, addr string, cfg *trainer.Config) {
	t.Helper()
	ctx := testutil.Context(t)
	c, err := client.Dial(ctx, client.Options{Endpoints: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := trainer.Enter(ctx, cfg, c, processName(ended(t))); err != nil {
		t.Fatal(err)
	}
}

// TestARestartedTrainerHasItsPlace: a trainer without a name gets the rank of a process of this host that was killed.
func TestARestartedTrainerHasItsPlace(t *testing.T) {
	addr := serve(t, 1)
	config := file(t, "again.yaml", jobOf("again", ""))
	cfg, err := trainer.LoadConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Lease = time.Minute
	enterAsEnded(t, addr, &cfg)
	result := filepath.Join(t.TempDir(), "result.json")
	more := file(t, "lease.yaml", jobOf("again", "lease: 1m\n"))
	train(t, new(options), "--config", more, "--endpoints", addr, "--insecure", "--json", result)
	if text, err := os.ReadFile(result); err != nil || !strings.Contains(string(text), `"rank": 0`) {
		t.Errorf("the trainer has another rank than 0, %v:\n%s", err, text)
	}
}

// TestARestartedTrainerTrainsNothingAgain: the job ends without a trainer whose process was killed. When that trainer
// is started again a moment later, without a name as before, it does not train the data once more.
func TestARestartedTrainerTrainsNothingAgain(t *testing.T) {
	addr := serve(t, 1)
	config := file(t, "late.yaml", strings.Replace(jobOf("late", "lease: 1s\n"), "steps: 12", "epochs: 1", 1))
	cfg, err := trainer.LoadConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	enterAsEnded(t, addr, &cfg)
	args := []string{"--config", config, "--endpoints", addr, "--insecure"}
	model := filepath.Join(t.TempDir(), "late.model")
	train(t, new(options), append(args, "--worker", "a", "--save-model", model)...)
	if _, err := os.Stat(model); err != nil {
		t.Errorf("the trainer of rank 1 has saved no model: %v", err)
	}
	result := filepath.Join(t.TempDir(), "result.json")
	train(t, new(options), append(args, "--json", result)...)
	if text, err := os.ReadFile(result); err == nil {
		t.Errorf("the restarted trainer has trained:\n%s", text)
	}
}

// TestAWaitingWorkerEntersOnce: a worker that waits for others enters its job once, and reads its data once. Its member
// keeps the lease.
func TestAWaitingWorkerEntersOnce(t *testing.T) {
	addr, ctx := serve(t, 1), testutil.Context(t)
	cfg, err := trainer.LoadConfig(file(t, "wait.yaml", jobOf("wait", "trainers: 2\nlease: 1s\n")))
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(ctx, client.Options{Endpoints: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var o options
	f := startFlags{timeout: 3 * time.Second, plan: launch.Plan{Scheduler: addr, Workers: 2}}
	if err := f.await(ctx, &o); err != nil {
		t.Fatal(err)
	}
	entered := 0
	err = o.waitForTrainers(ctx, &cfg, func(ctx context.Context) error {
		entered++
		return trainer.Enter(ctx, &cfg, c, "w0")
	})
	if rowraft.CodeOf(err) != rowraft.CodeDeadline || entered != 1 {
		t.Errorf("it entered %d times, want once: %v", entered, err)
	}
}
