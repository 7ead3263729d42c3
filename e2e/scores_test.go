package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/trainer/report"
)

// TestTheBestScoreOutlivesLeadersAndTrainers: while a job of two trainers overfits, the scheduler's leader and the
// trainer that scores are killed and started again. No later score that is worse counts as the best one, the job stops
// early, both results name the best score, and its checkpoint is there, although the regular checkpoints keep one.
func TestTheBestScoreOutlivesLeadersAndTrainers(t *testing.T) {
	c := start(t, localcluster.Options{})
	dest, dir := t.TempDir(), t.TempDir()
	config := filepath.Join(dir, "job.yaml")
	err := os.WriteFile(config, fmt.Appendf(nil, `job: early
trainers: 2
lease: 5m # a trainer that is silent for longer cannot enter again
epochs: 1000000
batch: 64
generator: {examples: 1024, held: 2000, keys: 400, categorical: 4, dense: 3}
model: {dim: 8, bottom: [16], top: [16]}
embeddings: {lr: 0.3}
dense: {lr: 0.1}
evaluate_every: 8
early_stop: {patience: 60}
checkpoint: {to: %s, keep_best: true, every: 1s, keep: 1}
`, dest), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	name := func(kind string, i int) string { return filepath.Join(dir, fmt.Sprintf("%s-%d", kind, i)) }
	began := 0
	begin := func(rank int) *running {
		began++
		return spawn(t, "rowraft-trainer", "train", "--config", config, "--rank", fmt.Sprint(rank), "--insecure",
			"--endpoints", strings.Join(c.Endpoints(), ","), "--device", "cpu", "--json", name("result", began),
			"--progress", "json", "--progress-file", name("progress", began))
	}
	first, other := begin(0), begin(1)
	err = poll(deadline(t, patience), func() error {
		if n := len(completeOf(listed(t, dest), "best-early-")); n == 0 {
			return fmt.Errorf("no checkpoint of a best score is in %v", listed(t, dest))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	leader := c.metaLeader()
	first.kill()
	if err := leader.Kill(); err != nil {
		t.Fatal(err)
	}
	again := begin(0)
	c.restartAll([]*localcluster.Server{leader})
	for _, p := range []*running{other, again} {
		if code := p.code(t, patience); code != 0 {
			t.Fatalf("exit code %d:\n%s%s", code, &p.stdout, &p.stderr)
		}
	}
	var scored []report.Event
	var killed report.Number // the best score of the killed trainer
	for i := 1; i <= began; i++ {
		for line := range bytes.Lines(mustRead(t, name("progress", i))) {
			var e report.Event
			if json.Unmarshal(line, &e) != nil || e.Event != report.EventValidation { // the last line of a killed process
				continue
			}
			scored = append(scored, e)
			if i == 1 {
				killed = max(killed, e.Held.AUC)
			}
		}
	}
	slices.SortFunc(scored, func(a, b report.Event) int { return a.Time.Compare(b.Time) })
	var best report.Number
	for _, e := range scored {
		if e.Held.Best != (e.Held.AUC > best) {
			t.Errorf("trainer %d: AUC %v counts as the best score: %v, and %v was reached before", e.Rank, e.Held.AUC,
				e.Held.Best, best)
		}
		best = max(best, e.Held.AUC)
	}
	for i := 2; i <= 3; i++ {
		var r report.Result
		readJSON(t, name("result", i), &r)
		b, saved := r.BestScore, r.BestScore
		if b != nil && b.Checkpoint == "" && b.Value == killed {
			saved = r.SavedScore // that trainer was killed before the checkpoint of its last best score was complete
		}
		if !strings.HasPrefix(r.StopReason, "early stop: ") || b == nil || b.Value != best || saved == nil ||
			saved.Checkpoint == "" {
			t.Errorf("process %d stopped because %q, with the best score %+v; want AUC %v of %d scores", i, r.StopReason, b,
				best, len(scored))
			continue
		}
		if state := listed(t, dest)[strings.TrimPrefix(saved.Checkpoint, dest+"/")]; state != "complete" {
			t.Errorf("the checkpoint %s of the best score is %q: %v", saved.Checkpoint, state, listed(t, dest))
		}
	}
	c.jobUntil("early", "the job is stopped", func(v jobView) bool { return v.State == "stopped" })
	if out := c.must("job", "describe", "early"); !strings.Contains(out, "early stop: 60 scores") {
		t.Errorf("the job has no reason to be stopped:\n%s", out)
	}
}
