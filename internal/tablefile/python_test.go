package tablefile

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/wire"
)

// TestPythonReadsAndWrites: numpy, safetensors and pyarrow read the files of this package, bit by bit, and
// this package reads theirs.
func TestPythonReadsAndWrites(t *testing.T) {
	interpreter := testutil.Python(t, "numpy, pyarrow.parquet, safetensors.numpy", // as in testdata/python.py
		"numpy==2.4.6", "pyarrow==26.0.1", "safetensors==0.8.0")
	dir := t.TempDir()
	type tableCase struct {
		Name string `json:"name"`
		Rows int    `json:"rows"`
		Dim  int    `json:"dim"`
		rows rows
	}
	cases := []*tableCase{{Name: "empty", Dim: 3}, {Name: "one", Rows: 1, Dim: 1}, {Name: "odd", Rows: 101, Dim: 5},
		{Name: "even", Rows: 3000, Dim: 16}, {Name: "bf16", Rows: 33, Dim: 3}}
	for _, c := range cases {
		c.rows = someRows(c.Rows, c.Dim)
		path, meta := filepath.Join(dir, c.Name), testMeta(c.Dim)
		if c.Name == "bf16" {
			for i, v := range c.rows.values {
				b := make([]byte, 2)
				wire.PutFloats(b, rowraft.BFloat16, []float32{min(max(v, -1e38), 1e38)})
				wire.GetFloats(c.rows.values[i:i+1], rowraft.BFloat16, b)
			}
			write(t, path+".safetensors", meta, c.rows, WriteOptions{DType: rowraft.BFloat16})
		} else {
			for _, f := range Formats() {
				write(t, path+"."+string(f), meta, c.rows, WriteOptions{})
			}
		}
		raw := appendFloats(appendKeys(nil, c.rows.keys), rowraft.Float32, c.rows.values)
		if err := os.WriteFile(path+".raw", raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := json.Marshal(cases)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cases.json"), list, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, interpreter, "testdata/python.py", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	read := func(name string, want rows) {
		t.Helper()
		r := open(t, filepath.Join(dir, name), ReadOptions{})
		if err := Check(t.Context(), r, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got, err := read(r, 10)
		if err != nil || !slices.Equal(got.keys, want.keys) || !sameBits(got.values, want.values) {
			t.Errorf("%s: %d rows, %v, or other values", name, len(got.keys), err)
		}
	}
	for _, c := range cases {
		if c.Name == "bf16" {
			continue
		}
		for _, f := range []string{".npy", ".safetensors", ".parquet", "_0.parquet", "_1.parquet"} {
			read("py_"+c.Name+f, c.rows)
		}
		if c.Dim%4 == 0 {
			read("py_"+c.Name+"_f8.npy", c.rows)
		}
	}
}
