package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/internal/localcluster"
)

// TestExportPredictsAsTheCluster: a model that was trained on a cluster is exported from there and from a checkpoint,
// and both have the predictions of the cluster, byte by byte; most ids of the file have no row. Weights that a trainer
// keeps are in the export of the trainer and in that of the checkpoint.
func TestExportPredictsAsTheCluster(t *testing.T) {
	c := start(t, localcluster.Options{Shards: 4})
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	cluster := []string{"--endpoints", strings.Join(c.Endpoints(), ","), "--insecure"}
	run := func(wantCode int, args ...string) (output string) {
		t.Helper()
		p := spawn(t, "rowraft-trainer", args...)
		if code := p.code(t, patience); code != wantCode {
			t.Fatalf("rowraft-trainer %s: exit code %d, want %d:\n%s%s", args, code, wantCode, &p.stdout, &p.stderr)
		}
		return p.stdout.String() + p.stderr.String()
	}
	run(0, "gen", "--out", in("clicks.csv"), "--schema", in("clicks.yaml"), "--examples", "3000", "--keys", "100")
	run(0, "gen", "--out", in("new.csv"), "--examples", "1000", "--keys", "5000", "--seed", "9")
	predictions := func(name string, args ...string) string {
		t.Helper()
		run(0, append([]string{"predict", "--data", in("new.csv"), "--out", in(name)}, args...)...)
		text, err := os.ReadFile(in(name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, kept := range []bool{false, true} {
		job := "plain"
		text := "model: {kind: deepfm, dim: 4, top: [16]}\nbatch: 100\ncheckpoint: {to: " + in("checkpoints") +
			", at_end: true}\n"
		if kept {
			job = "kept"
			text += "parameters: [{name: \"top.*\", placement: trainers}]\n"
		} else {
			text += "dtype: bfloat16\n" // rounds what a client pulls
		}
		text = "job: " + job + "\n" + text
		if err := os.WriteFile(in(job+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		run(0, append([]string{"train", "--config", in(job + ".yaml"), "--data", in("clicks.csv"), "--schema",
			in("clicks.yaml"), "--save-model", in(job + ".model"), "--export", in(job + ".trained")}, cluster...)...)
		made, err := filepath.Glob(in("checkpoints/" + job + "-*"))
		if err != nil || len(made) != 1 {
			t.Fatalf("checkpoints %v, %v", made, err)
		}
		run(0, "export", "--model", in(job+".model"), "--to", in(job+".saved"), "--checkpoint", made[0])
		want := predictions(job+".trained.txt", "--from", in(job+".trained"))
		if got := predictions(job+".saved.txt", "--from", in(job+".saved")); got != want || strings.Count(got, "\n") != 1000 {
			t.Errorf("%s: the export of the checkpoint has other predictions than that of the trainer", job)
		}
		export := append([]string{"export", "--model", in(job + ".model"), "--to", in(job + ".now")}, cluster...)
		if kept {
			if out := run(1, export...); !strings.Contains(out, "checkpoint") {
				t.Errorf("an export of weights that the trainers keep: %s", out)
			}
			continue
		}
		run(0, export...)
		if got := predictions("now.txt", "--from", in(job+".now")); got != want {
			t.Errorf("the export of the cluster has other predictions than that of the trainer")
		}
		if got := predictions("cluster.txt", append([]string{"--model", in(job + ".model")}, cluster...)...); got != want {
			t.Errorf("the cluster has other predictions than the export")
		}
	}
}
