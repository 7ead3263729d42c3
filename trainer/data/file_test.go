package data

import (
	"compress/gzip"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var w io.WriteCloser = f
	if strings.HasSuffix(name, ".gz") {
		w = gzip.NewWriter(f)
		defer w.Close()
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	return path
}

func schema(t *testing.T, text string) *Schema {
	t.Helper()
	s, err := LoadSchema(write(t, "schema.yaml", text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// openFile opens one file of which the share held, at the end, is held out.
func openFile(path string, s *Schema, held float64) (*Files, error) {
	return OpenFiles(Paths{path}, s, Options{Held: held})
}

// all reads a source to its end, in batches of size.
func all(t *testing.T, s Source, shape Shape, size int) *Batch {
	t.Helper()
	defer s.Close()
	out := &Batch{}
	b := NewBatch(size, shape)
	for {
		err := s.Next(b)
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out.N += b.N
		out.Labels = append(out.Labels, b.Labels[:b.N]...)
		out.Dense = append(out.Dense, b.Dense[:b.N*shape.Dense]...)
		out.Keys = append(out.Keys, b.Keys...)
		if shape.Truth {
			out.Truth = append(out.Truth, b.Truth[:b.N]...)
		}
	}
}

func key(feature, value string) rowraft.Key { return NewHasher(feature).Key([]byte(value)) }

const people = `format: csv
trim: true
missing: ["?"]
label: {column: Salary, positive: [">50K"], negative: ["<=50K"]}
dense:
  - {column: age, transform: standardize, mean: 40, std: 10, missing: -1}
  - {column: gain, transform: log1p}
categorical:
  - {column: job}
  - {column: age, name: group, buckets: [20, 40]}
`

func TestFile(t *testing.T) {
	const text = "age, job, gain, Salary\n50, \"Tech, \"\"sr\"\"\", 0, >50K\n?, ?, -1, <=50K\r\n40,Sales,1,<=50K\n\n19, " +
		"Sales, 1, >50K\n20,x,2,<=50K"
	for _, name := range []string{"people.csv", "people.csv.gz"} {
		t.Run(name, func(t *testing.T) {
			s := schema(t, people)
			f, err := openFile(write(t, name, text), s, 0.2)
			if err != nil {
				t.Fatal(err)
			}
			if f.TrainSize() != 4 {
				t.Errorf("TrainSize = %d, want 4 of 5", f.TrainSize())
			}
			r, err := f.Train(0, 0, 1)
			if err != nil {
				t.Fatal(err)
			}
			got := all(t, r, s.Shape(), 3)
			ln2 := float32(math.Ln2)
			if want := []float32{1, 0, 0, 1}; !slices.Equal(got.Labels, want) {
				t.Errorf("labels %v, want %v", got.Labels, want)
			}
			if want := []float32{1, 0, -1, -ln2, 0, ln2, float32(-2.1), ln2}; !slices.Equal(got.Dense, want) {
				t.Errorf("dense %v, want %v", got.Dense, want)
			}
			want := []rowraft.Key{key("job", `Tech, "sr"`), key("group", "b2"), key("job", ""), key("group", ""),
				key("job", "Sales"), key("group", "b2"), key("job", "Sales"), key("group", "b0")}
			if !slices.Equal(got.Keys, want) {
				t.Errorf("keys %x, want %x", got.Keys, want)
			}
			r, err = f.Held()
			if err != nil {
				t.Fatal(err)
			}
			if got := all(t, r, s.Shape(), 3); got.N != 1 || got.Keys[0] != key("job", "x") {
				t.Errorf("held-out part: %+v, want the last line", got)
			}
		})
	}
}

func TestRanksShareTheLines(t *testing.T) {
	s := schema(t, "header: false\nlabel: {position: 1}\ncategorical: [{position: 2, name: c}]\n")
	f, err := openFile(write(t, "x.csv", "0,a\n1,b\n0,c\n1,d\n0,e\n"), s, 0)
	if err != nil {
		t.Fatal(err)
	}
	for rank, want := range [][]rowraft.Key{{key("c", "a"), key("c", "d")}, {key("c", "b"), key("c", "e")},
		{key("c", "c")}} {
		r, err := f.Train(0, rank, 3)
		if err != nil {
			t.Fatal(err)
		}
		if got := all(t, r, s.Shape(), 8); !slices.Equal(got.Keys, want) {
			t.Errorf("rank %d of 3 reads %x, want %x", rank, got.Keys, want)
		}
	}
	if _, err := f.Train(0, 3, 3); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("rank 3 of 3: %v, want InvalidArgument", err)
	}
}

// The vectors were computed with the Python package xxhash (xxh3_64_intdigest,
// seed 0) over name, 0, value. They are on disk in every table: never change.
func TestKey(t *testing.T) {
	for _, tc := range []struct {
		feature, value string
		want           rowraft.Key
	}{
		{"C1", "68fd1e64", 0x0ccc27a509a677d6},
		{"C1", "", 0xddd2c84631a96202},
		{"C2", "68fd1e64", 0x26f5d3bf0dc671e5},
	} {
		if got := key(tc.feature, tc.value); got != tc.want {
			t.Errorf("key(%q, %q) = %#x, want %#x", tc.feature, tc.value, uint64(got), uint64(tc.want))
		}
	}
}

func TestBadLinesNameFileAndLine(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"missing columns", "age,job,gain,Salary\n1,a,1,>50K\n1,a,>50K\n", "x.csv:3: 3 columns, expected 4"},
		{"too many columns", "age,job,gain,Salary\n1,a,1,>50K,9\n", "x.csv:2: 5 columns, expected 4"},
		{"not a number", "age,job,gain,Salary\n1,a,lots,>50K\n", `x.csv:2: gain: "lots", expected a finite number`},
		{"infinite number", "age,job,gain,Salary\n1,a,inf,>50K\n", `x.csv:2: gain: "inf", expected a finite number`},
		{"unknown label", "age,job,gain,Salary\n1,a,1,>60K\n", `x.csv:2: Salary: label ">60K", expected one of`},
		{"missing label", "age,job,gain,Salary\n1,a,1,?\n", `x.csv:2: Salary: the label is missing`},
		{"open quote", "age,job,gain,Salary\n1,\"a,1,>50K\n", `x.csv:2: a quote is not closed`},
		{"text after quote", "age,job,gain,Salary\n1,\"a\"b,1,>50K\n", `x.csv:2: a quote is not closed`},
		{"no such column", "age,job,Salary\n1,a,>50K\n", `x.csv:1: the header has no column "gain"`},
		{"no examples", "age,job,gain,Salary\n", "no examples"},
		{"empty file", "", "the file is empty"},
		{"endless line", "age,job,gain,Salary\n" + strings.Repeat("x", maxLine+1), "x.csv:2: a line of more than"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := func() error {
				f, err := openFile(write(t, "x.csv", tc.text), schema(t, people), 0)
				if err != nil {
					return err
				}
				r, err := f.Train(0, 0, 1)
				if err != nil {
					return err
				}
				defer r.Close()
				b := NewBatch(1, f.Shape())
				for err == nil {
					err = r.Next(b)
				}
				return err
			}()
			if err == nil || !strings.Contains(err.Error(), tc.want) || rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
				t.Errorf("got %v, want InvalidArgument with %q", err, tc.want)
			}
		})
	}
	t.Run("a label in a later line is refused when the file is opened", func(t *testing.T) {
		_, err := openFile(write(t, "x.csv", "Salary,age,job,gain\n>50K,1,a,1\n<=50K,2,\"a,b\",1\n50,3,a,1\n"),
			schema(t, people), 0)
		if err == nil || !strings.Contains(err.Error(), `x.csv:4: Salary: label "50"`) {
			t.Errorf("got %v, want the file, the line and the value", err)
		}
	})
	t.Run("not gzip", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "x.gz")
		if err := os.WriteFile(path, []byte("plain"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := openFile(path, schema(t, people), 0); err == nil || !strings.Contains(err.Error(), "not gzip") {
			t.Errorf("got %v, want it to say that this is not gzip", err)
		}
	})
	t.Run("gzip cut short", func(t *testing.T) {
		path := write(t, "x.csv.gz", "age,job,gain,Salary\n"+strings.Repeat("1,a,1,>50K\n", 1000))
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, whole[:len(whole)-12], 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := openFile(path, schema(t, people), 0); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("got %v, want an error", err)
		}
	})
}

func TestBadSchemas(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"unknown key", "format: csv\nlabls: 1\n", `schema.yaml:2: unknown key "labls"`},
		{"unknown nested key", "label:\n  column: a\n  positiv: [1]\n", `schema.yaml:3: unknown key "positiv"`},
		{"one value in place of a list", "label:\n  column: a\n  positive: '>50K'\n",
			`schema.yaml:3: ">50K" is not a list: want [">50K"]`},
		{"unknown format", "format: json\n", `format "json": want csv, tsv, criteo`},
		{"no label", "categorical: [{column: a}]\n", "label: want either column"},
		{"column and position", "label: {column: a, position: 2}\n", "label: want either column"},
		{"no categories", "label: {column: a}\n", "no categorical features"},
		{"one name twice", "label: {column: a}\ncategorical: [{column: b}, {column: b}]\n",
			`two categorical features are called "b"`},
		{"buckets out of order", "label: {column: a}\ncategorical: [{column: b, buckets: [2, 1]}]\n", "not ascending"},
		{"transform", "label: {column: a}\ncategorical: [{column: b}]\ndense: [{column: c, transform: sqrt}]\n",
			`transform "sqrt"`},
		{"std", "label: {column: a}\ncategorical: [{column: b}]\ndense: [{column: c, transform: standardize, std: -1}]\n",
			"mean and std need"},
		{"separator", "separator: ', '\nlabel: {column: a}\ncategorical: [{column: b}]\n", "want one byte"},
		{"criteo with columns", "format: criteo\ndense: [{position: 3}]\n", "format criteo fixes the columns"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := LoadSchema(write(t, "schema.yaml", tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.want) || rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
				t.Errorf("got %v, want InvalidArgument with %q", err, tc.want)
			}
		})
	}
}

// One hand-made example in both layouts of the Criteo data: the same numbers and keys.
func TestCriteoLayouts(t *testing.T) {
	var header, line []string
	header = append(header, "label")
	line = append(line, "1")
	for i := range 13 {
		header = append(header, "I"+string(rune('a'+i)))
		line = append(line, map[bool]string{true: "", false: "3"}[i == 4])
	}
	for i := range 26 {
		header = append(header, "C"+string(rune('a'+i)))
		line = append(line, map[bool]string{true: "", false: "0badcafe"}[i == 25])
	}
	s := schema(t, "format: criteo\n")
	var batches []*Batch
	for name, text := range map[string]string{
		"original.txt": strings.Join(line, "\t") + "\n",
		"copy.csv":     strings.Join(header, ",") + "\n" + strings.Join(line, ",") + "\n",
		"plain.csv":    strings.Join(line, ",") + "\n",
		"original.gz":  strings.Join(line, "\t") + "\n",
	} {
		f, err := openFile(write(t, name, text), s, 0)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		r, err := f.Train(0, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		batches = append(batches, all(t, r, f.Shape(), 4))
	}
	for _, b := range batches {
		if b.N != 1 || b.Labels[0] != 1 || b.Dense[0] != float32(math.Log(4)) || b.Dense[4] != 0 ||
			b.Keys[0] != key("C1", "0badcafe") || b.Keys[25] != key("C26", "") {
			t.Errorf("got %+v", b)
		}
	}
}

// The data that the project does not ship: read to the end with its schemas.
func TestSharedData(t *testing.T) {
	for _, tc := range []struct {
		schema, file    string
		examples        int
		positive        float64
		dense, category int
	}{
		{"adult.yaml", "adult/adult_train.csv", 26048, 0.24, 5, 12},
		{"criteo.yaml", "criteo/criteo_train8k.csv", 8000, 0.25, 13, 26},
		{"criteo.yaml", "samples/criteo_sample.txt", 200, 0.25, 13, 26},
	} {
		t.Run(tc.file, func(t *testing.T) {
			path := filepath.Join("../../../shared/data", tc.file)
			if _, err := os.Stat(path); err != nil {
				t.Skipf("%s is absent: the data is not part of the project", path)
			}
			s, err := LoadSchema("../../examples/" + tc.schema)
			if err != nil {
				t.Fatal(err)
			}
			f, err := openFile(path, s, 0)
			if err != nil {
				t.Fatal(err)
			}
			r, err := f.Train(0, 0, 1)
			if err != nil {
				t.Fatal(err)
			}
			b := all(t, r, f.Shape(), 512)
			sum := float32(0)
			for _, y := range b.Labels {
				sum += y
			}
			if share := float64(sum) / float64(b.N); b.N != tc.examples || len(b.Dense) != b.N*tc.dense ||
				len(b.Keys) != b.N*tc.category || math.Abs(share-tc.positive) > 0.06 {
				t.Errorf("%d examples, %d numbers, %d keys, %.2f positive", b.N, len(b.Dense), len(b.Keys), share)
			}
		})
	}
}

func BenchmarkFile(b *testing.B) {
	g, err := NewGenerator(DefaultGenerator())
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(b.TempDir(), "x.csv")
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	if err := g.WriteCSV(b.Context(), f, 20000); err != nil {
		b.Fatal(err)
	}
	f.Close()
	y := filepath.Join(b.TempDir(), "x.yaml")
	if err := os.WriteFile(y, []byte(g.SchemaYAML()), 0o644); err != nil {
		b.Fatal(err)
	}
	s, err := LoadSchema(y)
	if err != nil {
		b.Fatal(err)
	}
	set, err := openFile(path, s, 0)
	if err != nil {
		b.Fatal(err)
	}
	batch := NewBatch(512, s.Shape())
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		r, err := set.Train(0, 0, 1)
		if err != nil {
			b.Fatal(err)
		}
		for r.Next(batch) == nil {
			n += batch.N
		}
		r.Close()
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "examples/s")
}
