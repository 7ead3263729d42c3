package data

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/rowraft/rowraft"
)

type click struct {
	Clicked bool      `parquet:"clicked"`
	Age     *float64  `parquet:"age,optional"`
	City    string    `parquet:"city"`
	User    uint64    `parquet:"user"`
	Tags    []string  `parquet:"tags,list"`
	History []int64   `parquet:"history,list"`
	Weights []float32 `parquet:"weights,list"`
}

// writeClicks writes n rows in groups of 5000. Row i has the user i and the tags t0 … t(i%3−1).
func writeClicks(t testing.TB, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.parquet")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := parquet.NewGenericWriter[click](f, parquet.MaxRowsPerRowGroup(5000), parquet.PageBufferSize(4096))
	for i := range n {
		c := click{Clicked: i%2 == 1, City: fmt.Sprint("c", i%7), User: uint64(i)}
		if i%4 > 0 {
			age := float64(i)
			c.Age = &age
		}
		for tag := range i % 3 {
			c.Tags = append(c.Tags, fmt.Sprint("t", tag))
			c.History = append(c.History, int64(i+tag))
			c.Weights = append(c.Weights, float32(i)/2)
		}
		if _, err := w.Write([]click{c}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func clicksSchema(t testing.TB) *Schema {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s.yaml")
	text := `format: parquet
label: {column: clicked}
dense: [{column: age, missing: -1}]
categorical:
  - {column: city}
  - {column: user, table: users, ids: exact}
  - {column: tags}
  - {column: history, table: users, ids: exact, weights: {column: weights}}
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := LoadSchema(path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Rows of Parquet read as those of a text file: lists are many values, null is missing. A range begins anywhere, also
// in the middle of a row group, and after another range.
func TestParquet(t *testing.T) {
	const n = 12000
	f, err := OpenFiles(Paths{writeClicks(t, n)}, clicksSchema(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	check := func(b *Batch, from int) {
		t.Helper()
		for j := range b.N {
			i := from + j
			age := float32(i)
			if i%4 == 0 {
				age = -1
			}
			want := []rowraft.Key{key("city", fmt.Sprint("c", i%7)), rowraft.Key(i)}
			weights := []float32{1, 1}
			for tag := range i % 3 {
				want, weights = append(want, key("tags", fmt.Sprint("t", tag))), append(weights, 1)
			}
			for tag := range i % 3 {
				want, weights = append(want, rowraft.Key(i+tag)), append(weights, float32(i)/2)
			}
			at, to := b.Offsets[4*j], b.Offsets[4*j+4]
			if b.Labels[j] != float32(i%2) || b.Dense[j] != age || !slices.Equal(b.Keys[at:to], want) ||
				!slices.Equal(b.Weights[at:to], weights) {
				t.Fatalf("row %d: label %v, age %v, keys %v, weights %v; want keys %v, weights %v", i, b.Labels[j],
					b.Dense[j], b.Keys[at:to], b.Weights[at:to], want, weights)
			}
		}
	}
	b := NewBatch(100, f.Shape())
	for _, r := range [][2]int64{{0, n}, {4990, 5010}, {11999, n}, {1, 3}, {9000, 9100}} {
		src, err := f.Range(0, r[0], r[1])
		if err != nil {
			t.Fatal(err)
		}
		at := r[0]
		for src.Next(b) == nil {
			check(b, int(at))
			at += int64(b.Read)
		}
		if at != r[1] {
			t.Errorf("range %v ended at %d", r, at)
		}
		src.Close()
	}
	shuffled, err := OpenFiles(Paths{f.inputs[0].path}, clicksSchema(t), Options{Shuffle: ShuffleExamples, Buffer: 3000})
	if err != nil {
		t.Fatal(err)
	}
	src, _ := shuffled.Train(3, 0, 1)
	defer src.Close()
	seen := make([]bool, n)
	for src.Next(b) == nil {
		for j := range b.N {
			user := b.Keys[b.Offsets[4*j+1]]
			if seen[user] || b.Labels[j] != float32(user%2) {
				t.Fatalf("row %d comes twice, or with the label of another one", user)
			}
			seen[user] = true
		}
	}
	if slices.Contains(seen, false) {
		t.Error("shuffled rows are missing")
	}
}

func TestBadParquet(t *testing.T) {
	path := writeClicks(t, 20)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := func(change string) *Schema { return schema(t, "format: parquet\nlabel: {column: clicked}\n"+change) }
	cut := filepath.Join(t.TempDir(), "cut.parquet")
	if err := os.WriteFile(cut, whole[:len(whole)-3], 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, path, want string
		s                *Schema
	}{
		{"no such column", path, `it has no column "town"; it has ["clicked"`, text("categorical: [{column: town}]\n")},
		{"a list as a number", path, "tags is a list", text("dense: [{column: tags}]\ncategorical: [{column: city}]\n")},
		{"text as a number", path, `row 1: city: "c0", expected a finite number`,
			text("dense: [{column: city}]\ncategorical: [{column: user}]\n")},
		{"text as an id", path, `row 1: city: "c0", expected an id`,
			text("categorical: [{column: city, ids: exact, table: t}]\n")},
		{"a file cut short", cut, "was it written to its end?", text("categorical: [{column: city}]\n")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := OpenFiles(Paths{tc.path}, tc.s, Options{})
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), ".parquet: ") {
				t.Errorf("%v, want the file and %q", err, tc.want)
			}
		})
	}
}

func BenchmarkParquet(b *testing.B) {
	f, err := OpenFiles(Paths{writeClicks(b, 20000)}, clicksSchema(b), Options{})
	if err != nil {
		b.Fatal(err)
	}
	batch := NewBatch(512, f.Shape())
	n, began := 0, cpu()
	for b.Loop() {
		src, err := f.Train(0, 0, 1)
		if err != nil {
			b.Fatal(err)
		}
		for src.Next(batch) == nil {
			n += batch.N
		}
		src.Close()
	}
	b.ReportMetric(float64(n)/(cpu()-began).Seconds(), "examples/cpu-s")
}
