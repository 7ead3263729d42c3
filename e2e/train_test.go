package e2e

import (
	"encoding/json"
	"fmt"
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
			if passes := float64(r.Examples) / (4 * float64(r.HeldExamples)); passes > 3.01 || tc.name == "adult" && passes > 1.01 {
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

// The demo, shorter than `make demo` runs it: its exit code, and the fields that
// programs read. Mode async is `make demo` itself.
func TestDemo(t *testing.T) {
	beforeRelease(t)
	needBinaries(t)
	for mode, steps := range map[string]int{"sync": 250, "ssp": 250, "geo": 350} {
		t.Run(mode, func(t *testing.T) { demo(t, mode, steps) })
	}
}

func demo(t *testing.T, mode string, steps int) {
	out := filepath.Join(t.TempDir(), "demo.json")
	p := spawn(t, "rowraft", "demo", "--mode", mode, "--steps", fmt.Sprint(steps), "--json", out)
	if code := p.code(t, 3*patience); code != 0 { // its own patience is minutes a step
		t.Fatalf("exit code %d:\n%s%s", code, &p.stdout, &p.stderr)
	}
	var r map[string]any
	readJSON(t, out, &r)
	for field, want := range map[string]func(v any) bool{
		"auc":                 func(v any) bool { x, ok := v.(float64); return ok && x > 0.7 && x < 0.85 },
		"best_auc":            func(v any) bool { x, ok := v.(float64); return ok && x > 0.75 && x < 0.85 },
		"examples_per_second": func(v any) bool { x, ok := v.(float64); return ok && x > 0 },
		"failover_seconds":    func(v any) bool { x, ok := v.(float64); return ok && x > 0 && x < 60 },
		"pushes_acknowledged": func(v any) bool { return v == float64(2*steps) },
		"pushes_lost":         func(v any) bool { return v == 0.0 },
		"pushes_duplicated":   func(v any) bool { return v == 0.0 },
		"replicas_identical":  func(v any) bool { return v == true },
	} {
		if v, ok := r[field]; !ok || !want(v) {
			t.Errorf("%s is %v", field, v)
		}
	}
	text := p.stdout.String() + p.stderr.String()
	for _, want := range []string{"kill −9 of server", "first push acknowledged", "has caught up", "best possible AUC", "lost", "applied twice", "replicas that agree"} {
		if !strings.Contains(text, want) {
			t.Errorf("the demo does not say %q:\n%s", want, text)
		}
	}
	if left := leftovers(bin); len(left) > 0 {
		t.Errorf("the demo leaves processes: %v", left)
	}
}
