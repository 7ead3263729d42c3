package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/localcluster"
)

// TestWorkersJoinDieAndLeave: a job begins with one worker, and a second one joins it. The first is killed, and a
// server with it; the process that is started again has the place of the first long before its lease ends. Then the
// second leaves at a signal. The job trains all of its data, and counts what the dead worker's successor reads again.
func TestWorkersJoinDieAndLeave(t *testing.T) {
	beforeRelease(t)
	c := start(t, localcluster.Options{})
	const examples, batch = 48_000, 16
	for _, mode := range []string{"async", "sync"} {
		dir, job := t.TempDir(), "joins"+mode
		config := filepath.Join(dir, "job.yaml")
		if err := os.WriteFile(config, fmt.Appendf(nil, `job: %s
mode: %s
lease: 1h
batch: %d
evaluate: false
generator: {examples: %d, held: 0, keys: 400, categorical: 4, dense: 3}
model: {dim: 8, sleep: 5ms}
`, job, mode, batch, examples), 0o600); err != nil {
			t.Fatal(err)
		}
		began := 0
		result := func(i int) string { return filepath.Join(dir, fmt.Sprintf("result-%d", i)) }
		begin := func() *running {
			began++
			return spawn(t, "rowraft-trainer", "train", "--config", config, "--json", result(began), "--insecure",
				"--endpoints", strings.Join(c.Endpoints(), ","), "--device", "cpu", "--progress", "none")
		}
		steps := func(v jobView, rank int) (incarnation, step uint64) {
			for _, m := range v.Members {
				if m.Rank == rank && m.State == "training" && m.Step != nil {
					return m.Incarnation, *m.Step
				}
			}
			return 0, 0
		}
		first := begin()
		v := c.jobUntil(job, "the first worker trains", func(v jobView) bool {
			_, step := steps(v, 0)
			return step > 20
		})
		of, _ := steps(v, 0)
		second := begin()
		c.jobUntil(job, "a second worker trains with the first", func(v jobView) bool {
			now, _ := steps(v, 0)
			_, step := steps(v, 1)
			return v.Training == 2 && now == of && step > 20
		})
		victim := c.Servers()[1]
		first.kill()
		if err := victim.Kill(); err != nil {
			t.Fatal(err)
		}
		again := begin()
		c.jobUntil(job, "a process that is started again has the place of the first", func(v jobView) bool {
			now, step := steps(v, 0)
			return v.Training == 2 && now > of && step > 20
		})
		signal(t, second, syscall.SIGTERM) // while there is data for both
		c.restartAll([]*localcluster.Server{victim})
		if code := second.code(t, patience); code != 130 {
			t.Errorf("mode %s: the second worker has exit code %d:\n%s%s", mode, code, &second.stdout, &second.stderr)
		}
		if code := again.code(t, patience); code != 0 {
			t.Fatalf("mode %s: the last worker has exit code %d:\n%s%s", mode, code, &again.stdout, &again.stderr)
		}
		v = c.jobUntil(job, "the job is done", func(v jobView) bool { return v.State == "done" })
		if v.Data == nil || len(v.Data.Open) > 0 || v.Data.AtMost > examples/2 {
			t.Errorf("mode %s: the job's data is %+v", mode, v.Data)
		}
		var left, stayed struct {
			Examples uint64 `json:"examples"`
			Most     uint64 `json:"read_again_at_most"`
		}
		readJSON(t, result(2), &left)
		readJSON(t, result(3), &stayed)
		if left.Examples+stayed.Examples > examples+stayed.Most || left.Examples == 0 || stayed.Examples == 0 {
			t.Errorf("mode %s: the workers that were not killed trained %d and %d examples of %d, at most %d of them once more",
				mode, left.Examples, stayed.Examples, examples, stayed.Most)
		}
		if mode != "async" {
			continue
		}
		pushes := []float32{0}
		table, err := c.dial(client.Options{}).Table(deadline(t, patience), job+".progress")
		if err == nil {
			err = table.Pull(deadline(t, patience), []rowraft.Key{0}, pushes)
		}
		if trained := uint64(pushes[0]) * batch; err != nil || trained < examples || trained > examples+stayed.Most {
			t.Errorf("the tables have %d examples of %d, at most %d of them once more: %v", trained, examples, stayed.Most, err)
		}
	}
	c.sameDigests()
}
