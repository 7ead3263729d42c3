package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/internal/localcluster"
)

// digits is the job of a LeNet whose weights are all on the servers: `make mnist` with 2,000 digits. It does one thing
// after another, so that a run does not depend on the load of the machine.
const digits = `job: digits
batch: 32
epochs: 5
in_flight: 0
model: {kind: lenet}
dense: {optimizer: adam, lr: 0.002}
data:
  images: %[1]s/train-images-idx3-ubyte.gz
  labels: %[1]s/train-labels-idx1-ubyte.gz
  held_images: %[1]s/t10k-images-idx3-ubyte.gz
  held_labels: %[1]s/t10k-labels-idx1-ubyte.gz
  limit: 2000
`

// TestQuality: the examples that the project ships, and a LeNet, learn on a cluster what they promise.
func TestQuality(t *testing.T) {
	beforeRelease(t)
	c := start(t, localcluster.Options{})
	for _, tc := range []struct {
		name, data string
		auc        float64
		passes     float64 // over the data, at most
	}{
		{"adult", "adult/adult_train.csv", 0.885, 1.01},
		{"criteo", "criteo/criteo_train8k.csv", 0.70, 3.01},
		{"digits", "mnist", 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &cluster{Cluster: c.Cluster, t: t}
			data, err := filepath.Abs(filepath.Join(root, "..", "shared", "data", tc.data))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(data); err != nil {
				t.Skipf("%s is absent: the data is not part of the project", data)
			}
			job, out := "examples/train-"+tc.name+".yaml", filepath.Join(t.TempDir(), "result.json")
			if tc.name == "digits" {
				job = filepath.Join(t.TempDir(), "digits.yaml")
				if err := os.WriteFile(job, fmt.Appendf(nil, digits, data), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			args := []string{"train", "--config", job, "--endpoints", strings.Join(c.Endpoints(), ","), "--insecure",
				"--device", "cpu", "--json", out}
			if tc.name != "digits" {
				args = append(args, "--data", data)
			}
			p := spawn(t, "rowraft-trainer", args...)
			if code := p.code(t, patience); code != 0 {
				t.Fatalf("exit code %d:\n%s%s", code, &p.stdout, &p.stderr)
			}
			var r struct {
				AUC                float64 `json:"auc"`
				FirstLoss          float64 `json:"first_loss"`
				Accuracy           float64 `json:"accuracy"`
				Examples           int64   `json:"examples"`
				ExamplesPerSecond  float64 `json:"examples_per_second"`
				HeldExamples       int     `json:"held_examples"`
				Steps              int64   `json:"steps"`
				PushesAcknowledged int64   `json:"pushes_acknowledged"`
			}
			readJSON(t, out, &r)
			t.Logf("AUC %.4f, first loss %.4f, accuracy %.4f on %d held-out examples after %d (%.0f/s)", r.AUC, r.FirstLoss,
				r.Accuracy, r.HeldExamples, r.Examples, r.ExamplesPerSecond)
			if r.PushesAcknowledged != r.Steps || r.Steps == 0 {
				t.Errorf("%d pushes acknowledged in %d steps", r.PushesAcknowledged, r.Steps)
			}
			if tc.name == "digits" {
				if math.Abs(r.FirstLoss-math.Ln10) > 0.02 {
					t.Errorf("the first loss is %.4f, want ln 10 = %.4f", r.FirstLoss, math.Ln10)
				}
				if !(r.Accuracy >= 0.90) || r.HeldExamples != 10_000 || r.Steps != 5*63 {
					t.Errorf("accuracy %.4f on %d digits after %d steps, want ≥ 0.90 on 10000 after 315", r.Accuracy, r.HeldExamples,
						r.Steps)
				}
			} else if passes := float64(r.Examples) / (4 * float64(r.HeldExamples)); !(r.AUC >= tc.auc) || passes > tc.passes {
				// A fifth of the examples is held out.
				t.Errorf("AUC %.4f after %.2f passes over the data, want ≥ %.3f after at most %.2f", r.AUC, passes, tc.auc,
					tc.passes)
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
