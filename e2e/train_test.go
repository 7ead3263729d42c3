package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/internal/localcluster"
)

// The examples that the project ships reach on a cluster what they promise.
func TestQuality(t *testing.T) {
	beforeRelease(t)
	needBinaries(t)
	for _, tc := range []struct {
		name, data string
		want       float64
	}{
		{"adult", "adult/adult_train.csv", 0.885},
		{"criteo", "criteo/criteo_train8k.csv", 0.70},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := filepath.Join(root, "..", "shared", "data", tc.data)
			if _, err := os.Stat(file); err != nil {
				t.Skipf("%s is absent: the data is not part of the project", file)
			}
			c := start(t, localcluster.Options{})
			out := filepath.Join(t.TempDir(), "result.json")
			p := spawn(t, "rowraft-trainer", "train", "--config", "examples/train-"+tc.name+".yaml",
				"--endpoints", strings.Join(c.Endpoints(), ","), "--insecure", "--accelerator", "go", "--json", out)
			if code := p.code(t, patience); code != 0 {
				t.Fatalf("exit code %d:\n%s%s", code, &p.stdout, &p.stderr)
			}
			var r struct {
				AUC                float64 `json:"auc"`
				Examples           int64   `json:"examples"`
				ExamplesPerSecond  float64 `json:"examples_per_second"`
				HeldExamples       int     `json:"held_examples"`
				Steps              int64   `json:"steps"`
				PushesAcknowledged int64   `json:"pushes_acknowledged"`
			}
			readJSON(t, out, &r)
			t.Logf("AUC %.4f on %d held-out examples after %d (%.0f/s)", r.AUC, r.HeldExamples, r.Examples, r.ExamplesPerSecond)
			if !(r.AUC >= tc.want) {
				t.Errorf("AUC %.4f, want ≥ %.3f", r.AUC, tc.want)
			}
			if r.PushesAcknowledged != r.Steps || r.Steps == 0 {
				t.Errorf("%d pushes acknowledged in %d steps", r.PushesAcknowledged, r.Steps)
			}
			// At most three passes, and a fifth held out.
			if passes := float64(r.Examples) / (4 * float64(r.HeldExamples)); passes > 3.01 || tc.name == "adult" &&
				passes > 1.01 {
				t.Errorf("%.2f passes over the data", passes)
			}
			c.sameDigests()
		})
	}
}

func readJSON(t testing.TB, path string, v any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%s: %v\n%s", path, err, b)
	}
}
