package e2e

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/internal/localcluster"
)

// A LeNet whose weights are all on the servers learns 2,000 digits: `make mnist`,
// which takes all of them, in short. One thing after another, so that a run does
// not depend on how busy the machine is.
func TestDigits(t *testing.T) {
	beforeRelease(t)
	needBinaries(t)
	dir, err := filepath.Abs(filepath.Join(root, "..", "shared", "data", "mnist"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("%s is absent: the data is not part of the project", dir)
	}
	c := start(t, localcluster.Options{})
	job, out := filepath.Join(t.TempDir(), "digits.yaml"), filepath.Join(t.TempDir(), "result.json")
	text := fmt.Sprintf(`job: digits
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
`, dir)
	if err := os.WriteFile(job, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := spawn(t, "rowraft-trainer", "train", "--config", job, "--endpoints", strings.Join(c.Endpoints(), ","),
		"--insecure",
		"--accelerator", "go", "--json", out, "--progress", "plain")
	if code := p.code(t, patience); code != 0 {
		t.Fatalf("exit code %d:\n%s%s", code, &p.stdout, &p.stderr)
	}
	var r struct {
		FirstLoss          float64 `json:"first_loss"`
		Accuracy           float64 `json:"accuracy"`
		HeldExamples       int     `json:"held_examples"`
		Steps              int64   `json:"steps"`
		PushesAcknowledged int64   `json:"pushes_acknowledged"`
	}
	readJSON(t, out, &r)
	t.Logf("first loss %.4f, accuracy %.4f on %d digits", r.FirstLoss, r.Accuracy, r.HeldExamples)
	if math.Abs(r.FirstLoss-math.Ln10) > 0.02 {
		t.Errorf("the first loss is %.4f, want ln 10 = %.4f", r.FirstLoss, math.Ln10)
	}
	if !(r.Accuracy >= 0.90) || r.HeldExamples != 10_000 {
		t.Errorf("accuracy %.4f on %d digits, want ≥ 0.90 on 10000", r.Accuracy, r.HeldExamples)
	}
	if r.Steps != 5*63 || r.PushesAcknowledged != r.Steps {
		t.Errorf("%d steps, %d pushes acknowledged, want 315 of both", r.Steps, r.PushesAcknowledged)
	}
	c.sameDigests()
}
