package main

import (
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/tablefile"
	"github.com/rowraft/rowraft/internal/testutil"
)

// rowsOf is a table in memory.
type rowsOf map[rowraft.Key][]float32

func (r rowsOf) add(t testing.TB, keys []rowraft.Key, values []float32) {
	t.Helper()
	if len(keys) == 0 {
		return
	}
	dim := len(values) / len(keys)
	for i, k := range keys {
		if _, twice := r[k]; twice {
			t.Fatalf("key %d came twice", k)
		}
		r[k] = slices.Clone(values[i*dim : (i+1)*dim])
	}
}

func (r rowsOf) same(t testing.TB, what string, want rowsOf) {
	t.Helper()
	if len(r) != len(want) {
		t.Errorf("%s: %d rows, want %d", what, len(r), len(want))
	}
	for k, w := range want {
		if !slices.Equal(r[k], w) {
			t.Fatalf("%s: key %d has %v, want %v", what, k, r[k], w)
		}
	}
}

// scanned reads a whole table through a client.
func scanned(t testing.TB, cl *client.Client, name string) rowsOf {
	t.Helper()
	ctx := testutil.Context(t)
	table, err := cl.Table(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	rows := make(rowsOf)
	if err := table.Scan(ctx, func(keys []rowraft.Key, values []float32) error {
		rows.add(t, keys, values)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return rows
}

// inFile reads a whole file.
func inFile(t testing.TB, path string) rowsOf {
	t.Helper()
	r, err := tablefile.Open(path, "", tablefile.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := tablefile.Check(t.Context(), r, nil); err != nil {
		t.Error(err)
	}
	rows := make(rowsOf)
	keys, values := make([]rowraft.Key, 1000), make([]float32, 1000*r.Info().Dim)
	for {
		n, err := r.Next(keys, values)
		if errors.Is(err, io.EOF) {
			return rows
		}
		if err != nil {
			t.Fatal(err)
		}
		rows.add(t, keys[:n], values[:n*r.Info().Dim])
	}
}

// TestExportAndImport takes a table, trained a little, through every format into
// another table, and into another cluster with another number of shards.
func TestExportAndImport(t *testing.T) {
	a, b := startLive(t, 4), startLive(t, 3)
	ac, bc := a.dial(), b.dial()
	ctx := testutil.Context(t)
	table, err := ac.CreateTable(ctx, rowraft.Schema{
		Name: "user", Kind: rowraft.Sparse, Dim: 7, Initializer: rowraft.Initializer{Kind: rowraft.InitNormal, Seed: 5, B: 1},
		Optimizer: rowraft.Optimizer{Kind: rowraft.Adagrad, LR: 0.1, InitialAccumulator: 0.1, Epsilon: 1e-8},
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	keys := []rowraft.Key{0, 1<<64 - 1, 1 << 63}
	for len(keys) < 20_000 {
		keys = append(keys, rowraft.Key(rng.Uint64()))
	}
	grads := make([]float32, 7*len(keys))
	for i := range grads {
		grads[i] = rng.Float32() - 0.5
	}
	if _, err := table.Push(ctx, keys, grads); err != nil {
		t.Fatal(err)
	}
	want := scanned(t, ac, "user")
	pulled := make([]float32, 7*len(keys))
	if err := table.Pull(ctx, keys, pulled); err != nil {
		t.Fatal(err)
	}
	rows := make(rowsOf)
	rows.add(t, keys, pulled)
	want.same(t, "scan", rows)

	dir := t.TempDir()
	dest := filepath.Join(dir, "checkpoints")
	a.createCheckpoint(dest, "c")
	for _, format := range tablefile.Formats() {
		file := filepath.Join(dir, "user."+string(format))
		var v struct {
			Rows uint64 `json:"rows"`
			Dim  int    `json:"dim"`
		}
		if err := json.Unmarshal([]byte(a.must("table", "export", "user", "--to", file, "-o", "json")), &v); err != nil ||
			v.Rows != uint64(len(keys)) || v.Dim != 7 {
			t.Errorf("export says %+v, %v", v, err)
		}
		inFile(t, file).same(t, string(format), want)

		other := "user_" + string(format)
		a.must("table", "import", other, "--from", file, "--create", "--optimizer", "sgd", "--lr", "1")
		scanned(t, ac, other).same(t, other, want)
		b.must("table", "import", "user", "--from", file, "--create") // again with each format: the same rows
		scanned(t, bc, "user").same(t, "the other cluster, "+string(format), want)

		// From the checkpoint, without a cluster.
		from := filepath.Join(dir, "saved."+string(format))
		a.must("table", "export", "user", "--to", from, "--checkpoint", dest+"/c", "--endpoints", "127.0.0.1:1")
		inFile(t, from).same(t, "checkpoint, "+string(format), want)
	}

	for _, tc := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"export", "user", "--to", filepath.Join(dir, "user.npy")}, 1, "exists"},
		{[]string{"export", "missing", "--to", filepath.Join(dir, "x.npy")}, 1, "does not exist"},
		{[]string{"export", "missing", "--to", filepath.Join(dir, "x.npy"), "--checkpoint", dest + "/c"}, 1,
			"has no table missing"},
		{[]string{"export", "user", "--to", filepath.Join(dir, "x.csv")}, 2, "want one of"},
		{[]string{"export", "user", "--to", filepath.Join(dir, "x.npy"), "--dtype", "bfloat16"}, 2, "npy has no bfloat16"},
		{[]string{"import", "user", "--from", filepath.Join(dir, "none.npy")}, 1, "there is no file"},
		{[]string{"import", "missing", "--from", filepath.Join(dir, "user.npy")}, 1, "--create makes it"},
		{[]string{"import", "wide", "--from", filepath.Join(dir, "user.npy")}, 2, "have 7 numbers, the rows of the table 9"},
	} {
		if tc.args[1] == "wide" {
			a.must("table", "create", "wide", "--dim", "9", "--if-not-exists")
		}
		if got := a.run(append([]string{"table"}, tc.args...)...); got.code != tc.code ||
			!strings.Contains(got.errout, tc.says) {
			t.Errorf("table %v: %+v; want %d and %q", tc.args, got, tc.code, tc.says)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*partial*")); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	// A file that is damaged at its very end changes nothing.
	file := filepath.Join(dir, "user.npy")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	copy(content[len(content)-4:], "\x00\x00\xc0\x7f")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := a.run("table", "import", "new", "--from", file, "--create"); got.code != 2 ||
		!strings.Contains(got.errout, "row 19999") || !strings.Contains(got.errout, "number 6 is NaN") {
		t.Errorf("a NaN: %+v", got)
	}
	if _, err := ac.Table(ctx, "new"); rowraft.CodeOf(err) != rowraft.CodeTableNotFound {
		t.Errorf("the table was made: %v", err)
	}
}
