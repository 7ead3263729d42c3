package exported

import (
	"context"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/models"
)

// libsvmSchema has numbers as weights of hashed indices, and a dense index.
const libsvmSchema = `
format: libsvm
dense:
  - {position: 3, transform: log1p}
categorical:
  - {name: words, indices: [10, 1000], pooling: mean}
  - {name: exact, indices: [2000, 9000], table: exact, ids: exact, max_length: 2}
`

// TestNumpyPredicts: examples/export/score.py reads an export of each kind of model, and the lines of a file, with
// public packages, and has the predictions of the trainer within 1e-5. Most ids of the file have no row.
func TestNumpyPredicts(t *testing.T) {
	interpreter := testutil.Python(t, "numpy, safetensors.numpy, xxhash", "numpy==2.4.6", "safetensors==0.8.0",
		"xxhash==3.6.0")
	script, err := filepath.Abs("../../examples/export/score.py")
	if err != nil {
		t.Fatal(err)
	}
	type example struct {
		change func(*trainer.Config)
		file   string
	}
	clicks := writeClicks(t, "new.csv", 300, 1000)
	cases := map[string]example{
		"bfloat16": {func(c *trainer.Config) { c.Embeddings.Storage = "bfloat16" }, clicks},
		"no hidden layers": {func(c *trainer.Config) {
			c.Model.Kind, c.Model.Top = "dcn", nil
		}, clicks},
	}
	for _, kind := range models.Kinds() {
		if kind != "lenet" {
			cases[kind] = example{func(c *trainer.Config) { c.Model.Kind, c.Model.Items = kind, 2 }, clicks}
		}
	}
	lines := filepath.Join(t.TempDir(), "lines.svm")
	text := "1 3:1.5 12:1 13:0.25 2000:1 2001:2 2002:0.5\n0 10:3 999:0.125 3:-7 # a comment\n+1 qid:4 2500:0.1\n-1 20:1\n"
	if err := os.WriteFile(lines, []byte(strings.Repeat(text, 30)), 0o600); err != nil {
		t.Fatal(err)
	}
	schema := filepath.Join(t.TempDir(), "svm.yaml")
	if err := os.WriteFile(schema, []byte(libsvmSchema), 0o600); err != nil {
		t.Fatal(err)
	}
	cases["libsvm"] = example{func(c *trainer.Config) {
		c.Model.Kind = "wide-deep"
		c.Data.File, c.Data.Schema = data.Paths{lines}, schema
	}, lines}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			job, from := trained(t, tc.change)
			dir := export(t, job, from, 0)
			want := predict(t, *trainer.TrainedModel(job).Config(), from, tc.file)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, interpreter, script, dir, tc.file)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %s", err, stderr.String())
			}
			got := strings.Fields(string(out))
			if len(got) != len(want) {
				t.Fatalf("%d scores, want %d", len(got), len(want))
			}
			most, low, high := 0.0, math.Inf(1), math.Inf(-1)
			for i, text := range got {
				x, err := strconv.ParseFloat(text, 64)
				if err != nil {
					t.Fatal(err)
				}
				most = max(most, math.Abs(x-float64(want[i])))
				low, high = min(low, x), max(high, x)
			}
			if !(most <= 1e-5) || high-low < 1e-3 {
				t.Errorf("a score differs by %g, want at most 1e-5; the scores are %g to %g", most, low, high)
			}
			t.Logf("scores %.3f to %.3f differ by at most %.1g", low, high, most)
		})
	}
}
