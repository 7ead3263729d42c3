package rowstore

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
)

// TestReplayGolden applies the pushes of testdata/replay.py and compares the digests. The script implements
// the written formulas (hash, slot, version, initializer, rule, record, digest) in Python. Every build must
// give the same digests: plain, SIMD, arm64.
func TestReplayGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/replay.hex")
	if err != nil {
		t.Fatal(err)
	}
	const dim = 19
	var got strings.Builder
	for _, opt := range []rowraft.OptimizerKind{rowraft.SGD, rowraft.Adagrad, rowraft.Adam} {
		schema := testSchema(rowraft.Sparse, opt, dim)
		schema.Initializer = rowraft.Initializer{Kind: rowraft.InitUniform, Seed: 7, NameHash: 0x76033e85f0acf92d,
			A: -0.5, B: 0.25}
		table := mustNew(t, schema)
		for p := range 3 {
			var keys []rowraft.Key
			var grads []float32
			for k := range 200 {
				if k%3 == p {
					continue
				}
				keys = append(keys, rowraft.Key(k*k))
				for j := range dim {
					grads = append(grads, float32((31*k+17*j+7*p)%201-100)/64)
				}
			}
			mustUpdate(t, table, keys, grads)
		}
		fmt.Fprintln(&got, opt, table.Rows(), table.Digest())
	}
	if got.String() != string(text) {
		t.Errorf("digests\n%swant\n%s", got.String(), text)
	}
}
