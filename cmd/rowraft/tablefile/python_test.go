package tablefile

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// packages are the imports of testdata/python.py.
var packages = []string{"numpy==2.4.6", "pyarrow==26.0.1", "safetensors==0.8.0"}

// python returns an interpreter with packages, from a virtual environment that is kept between runs.
// Without Python, or if pip cannot install the packages, it skips the test.
func python(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no Python packages are installed")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skipf("no place to keep Python packages: %v", err)
	}
	venv := filepath.Join(cache, "rowraft-test", strings.NewReplacer("==", "-").Replace(strings.Join(packages, "_")))
	bin := filepath.Join(venv, "bin", "python")
	if exec.Command(bin, "-c", "import numpy, pyarrow.parquet, safetensors.numpy").Run() == nil {
		return bin
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for _, args := range [][]string{
		{"python3", "-m", "venv", "--clear", venv},
		append([]string{bin, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"},
			packages...),
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("SKIPPED: the files are not read by their Python packages: %v: %v: %s", args, err, out)
		}
	}
	return bin
}

// TestPythonReadsAndWrites: numpy, safetensors and pyarrow read the files of this package, bit by bit, and
// this package reads theirs.
func TestPythonReadsAndWrites(t *testing.T) {
	interpreter := python(t)
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
