package exported

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/tables"
)

// schemaText has each way of preprocessing that a schema knows.
const schemaText = `
label: {column: click}
missing: ["?"]
dense:
  - {column: age, transform: standardize}
  - {column: price, transform: log1p, standardize: true, missing: -1}
  - {column: plain}
categorical:
  - {column: user, table: users, ids: exact}
  - {column: item}
  - {column: age, name: age_bucket, buckets: [20, 40, 60]}
  - {column: tags, separator: "|", pooling: mean, max_length: 3}
  - {column: seen, table: items, separator: " ", weights: {column: seen_weights}}
`

// writeClicks writes a file of n examples whose label depends on some columns; ids are below most.
func writeClicks(t testing.TB, name string, n, most int) string {
	r := rand.New(rand.NewPCG(5, uint64(n)))
	var b strings.Builder
	b.WriteString("click,user,item,age,price,plain,tags,seen,seen_weights\n")
	for range n {
		user, age := r.IntN(most), 15+r.IntN(60)
		click := 0
		if r.Float64() < 0.2+0.4*float64(user%2) {
			click = 1
		}
		price := "?"
		if r.IntN(4) > 0 {
			price = fmt.Sprint(r.IntN(100_000))
		}
		var tags, seen, weights []string
		for range r.IntN(5) {
			tags = append(tags, fmt.Sprintf("t%d", r.IntN(9)))
		}
		for range r.IntN(4) {
			seen = append(seen, fmt.Sprint(r.IntN(most)))
			weights = append(weights, fmt.Sprintf("%.2f", r.Float64()))
		}
		fmt.Fprintf(&b, "%d,%d,i%d,%d,%s,%.3f,%s,%s,%s\n", click, user, r.IntN(most), age, price, r.NormFloat64(),
			strings.Join(tags, "|"), strings.Join(seen, " "), strings.Join(weights, " "))
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// trained trains a model of a kind on tables in this process, and returns its job and them.
func trained(t testing.TB, change func(*trainer.Config)) (*trainer.Job, *tables.Local) {
	t.Helper()
	schema := filepath.Join(t.TempDir(), "schema.yaml")
	if err := os.WriteFile(schema, []byte(schemaText), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := trainer.DefaultConfig()
	cfg.Data.File, cfg.Data.Schema = data.Paths{writeClicks(t, "train.csv", 300, 40)}, schema
	cfg.Batch, cfg.InFlight, cfg.Model.Dim = 32, new(0), 4
	cfg.Model.Bottom, cfg.Model.Top = []int{8}, []int{8, 4}
	cfg.Evaluate = new(bool)
	if change != nil {
		change(&cfg)
	}
	dtype, err := rowraft.ParseDType(cfg.DType)
	if err != nil {
		t.Fatal(err)
	}
	to, err := tables.NewLocal(2, dtype)
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	if _, err := cfg.OpenData(); err != nil { // completes the schema
		t.Fatal(err)
	}
	job, err := trainer.NewJob(t.Context(), cfg, to, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := job.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return job, to
}

// export writes the model of a job to a new directory.
func export(t testing.TB, job *trainer.Job, from *tables.Local, most int64) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	e := FromLocal(from, trainer.TrainedModel(job))
	e.fileBytes = most
	if _, err := e.Write(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// predict returns the predictions for a file without its labels.
func predict(t testing.TB, cfg trainer.Config, from tables.Tables, file string) (out []float32) {
	t.Helper()
	cfg.Data.File, cfg.Data.Unlabelled, cfg.Data.Held = data.Paths{file}, true, new(float64)
	job, err := trainer.NewJob(t.Context(), cfg, from, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = job.Predict(t.Context(), 2, func(p *trainer.Predicted) error {
		out = append(out, p.Result.Predictions...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestExportPredictsAsItsTables: for each kind of model, and with bfloat16 on the wire and in the tables, an export has
// the predictions of its tables, bit by bit; most ids of the file have no row.
func TestExportPredictsAsItsTables(t *testing.T) {
	cases := map[string]func(*trainer.Config){
		"bfloat16 on the wire":   func(c *trainer.Config) { c.DType = "bfloat16" },
		"bfloat16 in the tables": func(c *trainer.Config) { c.Embeddings.Storage = "bfloat16" },
		"weights written by a worker or a server": func(c *trainer.Config) {
			c.Parameters = []trainer.ParameterConfig{{Name: "bottom.*", Init: trainer.InitServer},
				{Name: "top.0.*", Init: trainer.InitWorker}}
		},
		"weights kept by trainers": func(c *trainer.Config) {
			c.Parameters = []trainer.ParameterConfig{{Name: "top.*", Placement: trainer.PlaceTrainers}}
		},
	}
	for _, kind := range models.Kinds() {
		if kind != "lenet" {
			cases[kind] = func(c *trainer.Config) { c.Model.Kind, c.Model.Items = kind, 2 }
		}
	}
	file := writeClicks(t, "new.csv", 500, 1000)
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			job, from := trained(t, change)
			m, err := Open(t.Context(), export(t, job, from, 0))
			if err != nil {
				t.Fatal(err)
			}
			got := predict(t, m.Config(), m, file)
			if name == "weights kept by trainers" { // their job cannot predict
				if len(got) != 500 {
					t.Errorf("%d predictions", len(got))
				}
				return
			}
			want := predict(t, *trainer.TrainedModel(job).Config(), from, file)
			if !slices.EqualFunc(got, want, func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }) ||
				len(got) != 500 {
				t.Errorf("%d predictions, %v …; want %d, %v …", len(got), got[:3], len(want), want[:3])
			}
		})
	}
}

// TestManyFilesOfATable: small files have the rows of one large file.
func TestManyFilesOfATable(t *testing.T) {
	job, from := trained(t, nil)
	one, err := Open(t.Context(), export(t, job, from, 0))
	if err != nil {
		t.Fatal(err)
	}
	// A scan in batches of 4096 rows never fills a file: give it rows one by one.
	dir := filepath.Join(t.TempDir(), "model")
	scan := FromLocal(from, nil).Scan
	e := &Export{Model: trainer.TrainedModel(job), fileBytes: 200}
	e.Scan = func(ctx context.Context, schemas []rowraft.Schema, rows func(int, []rowraft.Key, []float32) error) error {
		return scan(ctx, schemas, func(table int, keys []rowraft.Key, weights []float32) error {
			dim := schemas[table].Dim
			for i := range keys {
				if err := rows(table, keys[i:i+1], weights[i*dim:(i+1)*dim]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if _, err := e.Write(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	many, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range many.tables {
		a, b := many.tables[i], one.tables[i]
		if n := len(many.description.Tables[i].Files); n < 2 || !slices.Equal(a.keys, b.keys) ||
			!slices.Equal(a.values, b.values) {
			t.Errorf("table %s: %d files, %d rows, want %d", a.name, n, len(a.keys), len(b.keys))
		}
	}
}

// TestAnExportIsCompleteOrAbsent: an error leaves nothing behind, and an existing directory stays as it is.
func TestAnExportIsCompleteOrAbsent(t *testing.T) {
	job, from := trained(t, nil)
	parent := t.TempDir()
	dir := filepath.Join(parent, "model")
	scan := FromLocal(from, nil).Scan
	broken := rowraft.Errorf(rowraft.CodeDeadline, "the server is away")
	e := &Export{Model: trainer.TrainedModel(job), Scan: func(ctx context.Context, schemas []rowraft.Schema,
		rows func(int, []rowraft.Key, []float32) error) error {
		if err := scan(ctx, schemas, rows); err != nil {
			return err
		}
		return broken
	}}
	if _, err := e.Write(t.Context(), dir); rowraft.CodeOf(err) != rowraft.CodeDeadline {
		t.Errorf("%v, want the error of the scan", err)
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("%v stayed, %v", left, err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	e.Scan = scan
	if _, err := e.Write(t.Context(), dir); rowraft.CodeOf(err) != rowraft.CodeAlreadyExists {
		t.Errorf("%v, want CodeAlreadyExists", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the directory has %v, %v", left, err)
	}
}

// TestFilesOfTwoTables: a file of one table never has the name of a file of another.
func TestFilesOfTwoTables(t *testing.T) {
	r := rowFiles{disk: vfs.OS, dir: t.TempDir(), dtype: rowraft.Float32, most: 1}
	for i, name := range []string{"ctr.embeddings", "ctr.embeddings.2"} {
		s := rowraft.Schema{ID: rowraft.TableID(i + 1), Name: name, Kind: rowraft.Sparse, Dim: 2}
		if err := r.open(&s); err != nil {
			t.Fatal(err)
		}
	}
	defer r.abort()
	for key := range rowraft.Key(3) { // each begins a file
		for table := range r.tables {
			if err := r.append(table, []rowraft.Key{key}, make([]float32, 2)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestDamageIsFound: each damage of a directory has its code and names the file.
func TestDamageIsFound(t *testing.T) {
	job, from := trained(t, nil)
	whole := export(t, job, from, 0)
	rows := "ctr.embeddings.users.safetensors"
	replace := func(old, with string) func([]byte) []byte {
		return func(b []byte) []byte { return []byte(strings.Replace(string(b), old, with, 1)) }
	}
	for name, tc := range map[string]struct {
		file   string
		change func([]byte) []byte // nil: the file is removed
		code   rowraft.Code
		want   string
	}{
		"a bit of a row":   {rows, func(b []byte) []byte { b[len(b)-300] ^= 1; return b }, rowraft.CodeCorrupt, rows},
		"rows are cut off": {rows, func(b []byte) []byte { return b[:len(b)-8] }, rowraft.CodeCorrupt, "bytes"},
		"no rows":          {rows, nil, rowraft.CodeCorrupt, "missing"},
		"a bit of a tensor": {tensorsFile, func(b []byte) []byte { b[len(b)-1] ^= 1; return b }, rowraft.CodeCorrupt,
			"SHA-256"},
		"no description": {descriptionFile, nil, rowraft.CodeNotFound, "rowraft-trainer export"},
		"half of it": {descriptionFile, func(b []byte) []byte { return b[:len(b)/2] }, rowraft.CodeCorrupt,
			descriptionFile},
		"a newer one": {descriptionFile, replace(`"rowraft_model": 1`, `"rowraft_model": 2`), rowraft.CodeVersionTooNew,
			"knows 1"},
		"a file elsewhere":    {descriptionFile, replace(`"`+rows, `"../`+rows), rowraft.CodeCorrupt, "in the directory"},
		"another initializer": {descriptionFile, replace(`"uniform"`, `"cauchy"`), rowraft.CodeCorrupt, "cauchy"},
		"another width": {descriptionFile, replace(`"dim": 4,`+"\n   \"rows\"", `"dim": 5,`+"\n   \"rows\""),
			rowraft.CodeCorrupt, "rows of 4"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "model")
			if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, tc.file)
			b, err := os.ReadFile(path)
			if err == nil && tc.change != nil {
				err = os.WriteFile(path, tc.change(b), 0o600)
			} else if err == nil {
				err = os.Remove(path)
			}
			if err != nil {
				t.Fatal(err)
			}
			_, err = Open(t.Context(), dir)
			if rowraft.CodeOf(err) != tc.code || !strings.Contains(fmt.Sprint(err), tc.want) {
				t.Errorf("%v; want %v with %q", err, tc.code, tc.want)
			}
		})
	}
}

// FuzzOpen reads any bytes in place of the three files. It expects an error with a code, or a model that a job can use.
func FuzzOpen(f *testing.F) {
	job, from := trained(f, func(c *trainer.Config) { c.Model.Kind = "lr" })
	dir := export(f, job, from, 0)
	var whole [3][]byte
	names := []string{descriptionFile, tensorsFile, "ctr.embeddings.safetensors"}
	for i, name := range names {
		var err error
		if whole[i], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(whole[0], whole[1], whole[2])
	f.Add([]byte(`{"rowraft_model":1,"input":{"format":"csv"},"tensors":{"file":"model.safetensors"}}`), whole[1],
		whole[2])
	f.Fuzz(func(t *testing.T, description, tensors, rows []byte) {
		disk := vfs.NewMem()
		for i, b := range [][]byte{description, tensors, rows} {
			w, err := disk.OpenFile(names[i], os.O_WRONLY|os.O_CREATE)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(b); err != nil {
				t.Fatal(err)
			}
			w.Close()
		}
		m, err := open(t.Context(), disk, ".", false)
		if err != nil {
			if rowraft.CodeOf(err) == rowraft.CodeUnknown {
				t.Fatalf("an error without a code: %v", err)
			}
			return
		}
		for i := range m.tables {
			values := make([]float32, 2*m.tables[i].dim)
			err := m.Pull(t.Context(), []tables.Segment{{Table: rowraft.TableID(i + 1), Dim: m.tables[i].dim,
				Keys: []rowraft.Key{0, 1}, Values: values}})
			if err != nil {
				t.Fatal(err)
			}
		}
		if cfg := m.Config(); cfg.Data.Described.Shape().Dense > 1000 || len(cfg.Data.Described.Categorical) > 1000 {
			return
		}
		cfg := m.Config()
		cfg.Data.File = data.Paths{"/does/not/exist.csv"}
		_ = cfg.Validate()
	})
}
