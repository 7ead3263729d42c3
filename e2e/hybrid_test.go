package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft/internal/localcluster"
)

// Two trainers keep the dense weights and average gradients in mode sync, rows at the
// servers. One, which takes its time so that the job is not done before, is killed: when its lease has run out, which is longer than
// the other may stand still, that one goes on in the next generation, and ends.
func TestATrainerThatAveragesDies(t *testing.T) {
	beforeRelease(t)
	needBinaries(t)
	c := start(t, localcluster.Options{})
	dir := t.TempDir()
	var addresses []string
	for range 2 {
		p, err := localcluster.ReservePort()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Release() })
		addresses = append(addresses, fmt.Sprintf("%q", p.Addr))
	}
	text := fmt.Sprintf(`job: kept
mode: sync
steps: 150
batch: 32
lease: 15s
generator: {examples: 0, held: 200}
parameters:
  - {name: "*", placement: trainers}
average: {addresses: [%s]}
`, strings.Join(addresses, ", "))
	var trainers []*running
	events := func(rank int) string { return filepath.Join(dir, fmt.Sprintf("events-%d", rank)) }
	for rank, sleep := range []string{"1ms", "300ms"} {
		job := filepath.Join(dir, fmt.Sprintf("job-%d.yaml", rank))
		if err := os.WriteFile(job, fmt.Appendf(nil, "%smodel: {sleep: %s}\n", text, sleep), 0o600); err != nil {
			t.Fatal(err)
		}
		trainers = append(trainers, spawn(t, "rowraft-trainer", "train", "--config", job, "--endpoints", strings.Join(c.Endpoints(), ","), "--insecure",
			"--trainers", "2", "--rank", fmt.Sprint(rank), "--accelerator", "go", "--progress", "json", "--progress-file", events(rank),
			"--json", filepath.Join(dir, fmt.Sprintf("result-%d", rank))))
	}
	killed := false
	for limit := time.After(patience); !killed; {
		b, _ := os.ReadFile(events(1))
		if killed = bytes.Count(b, []byte(`"event":"step"`)) >= 5; killed {
			trainers[1].kill()
			break
		}
		select {
		case <-limit:
			t.Fatalf("trainer 1 takes no steps:\n%s%s", &trainers[1].stderr, &trainers[0].stderr)
		case <-time.After(10 * time.Millisecond):
		}
	}
	if code := trainers[0].code(t, patience); code != 0 {
		t.Fatalf("exit code %d:\n%s%s", code, &trainers[0].stdout, &trainers[0].stderr)
	}
	var r struct {
		Steps              int64 `json:"steps"`
		PushesAcknowledged int64 `json:"pushes_acknowledged"`
		HeldExamples       int   `json:"held_examples"`
	}
	readJSON(t, filepath.Join(dir, "result-0"), &r)
	if r.Steps != 150 || r.PushesAcknowledged != 150 || r.HeldExamples != 200 {
		t.Errorf("%+v, want 150 steps, each acknowledged, and 200 examples scored", r)
	}
	if _, err := os.Stat(filepath.Join(dir, "result-1")); err == nil {
		t.Error("trainer 1 ended before it was killed")
	}
	c.sameDigests()
}
