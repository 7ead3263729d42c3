package trainer

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/data/request"
	"github.com/rowraft/rowraft/trainer/serving"
	"github.com/rowraft/rowraft/trainer/tables"
)

// everyKind is the schema of a log with every kind of feature.
const everyKind = `missing: ["?"]
label: {column: clicked}
dense:
  - {column: age, missing: -1}
  - {column: income, transform: log1p, standardize: true}
  - {column: level, transform: standardize}
categorical:
  - {column: city}
  - {column: age, name: decade, buckets: [10, 20, 30]}
  - {column: tags, separator: "|", weights: {column: scores}, pooling: mean, max_length: 2}
  - {column: item, table: items, dim: 4, ids: exact}
`

// everyKindFile writes a log of n examples, and its schema.
func everyKindFile(t *testing.T, n int) (file, schema string) {
	var text strings.Builder
	text.WriteString("clicked,age,income,level,city,tags,scores,item\n")
	for i := range n {
		age, level, tags, scores := fmt.Sprint(i%60), fmt.Sprint(float64(i%7)/3), "", ""
		if i%11 == 0 {
			age = "?"
		}
		if i%13 == 0 {
			level = ""
		}
		for k := range i % 4 {
			if k > 0 {
				tags, scores = tags+"|", scores+"|"
			}
			tags, scores = tags+fmt.Sprint("t", (i+k)%9), scores+fmt.Sprint(float64(k+1)/7)
		}
		item := ""
		if i%5 > 0 {
			item = fmt.Sprint(uint64(i%17) * 1e15)
		}
		fmt.Fprintf(&text, "%d,%s,%d,%s,c%d,%s,%s,%s\n", i%3/2, age, i*i%977-300, level, i%6, tags, scores, item)
	}
	dir := t.TempDir()
	file, schema = filepath.Join(dir, "log.csv"), filepath.Join(dir, "log.yaml")
	for path, text := range map[string]string{file: text.String(), schema: everyKind} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return file, schema
}

// scorerOf returns a scorer of the model over tables of this process.
func scorerOf(t *testing.T, model Config, to *tables.Local, o serving.Options) (*serving.Scorer, *request.Parser) {
	t.Helper()
	opened, err := OpenModel(t.Context(), model, to)
	if err != nil {
		t.Fatal(err)
	}
	m, err := opened.Served()
	if err != nil {
		t.Fatal(err)
	}
	o.Timeout, o.Queue = time.Minute, 1<<20
	s, err := serving.New(t.Context(), *m, serving.Still(to), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	p, err := request.NewParser(opened.Config().Data.Described)
	if err != nil {
		t.Fatal(err)
	}
	return s, p
}

// TestScoresAreThoseOfPredict: the predictions of requests have the bits of Predict for a file of the same lines, for
// each kind of model, in any division into concurrent requests, and create no row.
func TestScoresAreThoseOfPredict(t *testing.T) {
	for _, kind := range []string{"lr", "fm", "wide-deep", "deepfm", "dcn", "dlrm", "two-tower"} {
		t.Run(kind, func(t *testing.T) {
			to := newLocal(t)
			cfg := tinyConfig(0, 0)
			file, schema := everyKindFile(t, 300)
			cfg.Generator, cfg.Batch, cfg.Data.File, cfg.Data.Schema = nil, 32, data.Paths{file}, schema
			cfg.Model = ModelConfig{Kind: kind, Dim: 4, Bottom: []int{8}, Top: []int{8}}
			if kind == "two-tower" {
				cfg.Model.Items = 2
			}
			cfg.Epochs = 1
			if _, err := cfg.OpenData(); err != nil { // it measures what is standardized
				t.Fatal(err)
			}
			mustRun(t, cfg, to, nil)
			path := filepath.Join(t.TempDir(), "model")
			if err := cfg.SaveModel(path); err != nil {
				t.Fatal(err)
			}
			model, err := LoadServed(path)
			if err != nil {
				t.Fatal(err)
			}
			want := predictions(t, model, to, file)
			before := rowsOf(t, to, model)
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			lines := bytes.SplitAfter(text, []byte("\n"))
			header, lines := lines[0], lines[1:len(lines)-1]
			for _, o := range []serving.Options{{MaxAge: time.Minute}, {}} {
				s, p := scorerOf(t, model, to, o)
				var all sync.WaitGroup
				for from, n := 0, 1; from < len(lines); from, n = from+n, n*2 { // requests of 1, 2, 4 … 128 examples
					n = min(n, len(lines)-from)
					b, err := p.Text(append(bytes.Clone(header), bytes.Join(lines[from:from+n], nil)...), n)
					if err != nil {
						t.Fatal(err)
					}
					all.Go(func() {
						got, err := s.Score(t.Context(), b)
						if err != nil || len(got) != n {
							t.Errorf("%d predictions, %v", len(got), err)
							return
						}
						for i := range got {
							if math.Float32bits(got[i]) != math.Float32bits(want[from+i]) {
								t.Errorf("example %d of a request of %d is %v, Predict says %v", i, n, got[i], want[from+i])
								return
							}
						}
					})
				}
				all.Wait()
			}
			if after := rowsOf(t, to, model); after != before {
				t.Errorf("the tables had %d rows, and have %d", before, after)
			}
		})
	}
}

// TestServedJobs: a job is served if requests can have its examples and its weights are in tables.
func TestServedJobs(t *testing.T) {
	to := newLocal(t)
	file, schema := everyKindFile(t, 60)
	job := func(change func(*Config)) error {
		cfg := tinyConfig(0, 0)
		cfg.Generator, cfg.Data.File, cfg.Data.Schema = nil, data.Paths{file}, schema
		change(&cfg)
		m, err := OpenModel(t.Context(), cfg, to)
		if err == nil {
			_, err = m.Served()
		}
		return err
	}
	if err := job(func(*Config) {}); err != nil { // standardized by its training examples
		t.Error(err)
	}
	for name, change := range map[string]func(*Config){
		"a schema":  func(c *Config) { c.Data = DataConfig{}; c.Generator = tinyConfig(0, 0).Generator },
		"not there": func(c *Config) { c.Data.File = nil },
		"kind":      func(c *Config) { c.Model.Kind = "oracle" },
	} {
		if err := job(change); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%s: %v, want CodeInvalidArgument", name, err)
		}
	}
	err := job(func(c *Config) { c.Parameters = []ParameterConfig{{Name: "*", Placement: PlaceTrainers}} })
	if err != errElsewhere {
		t.Errorf("weights that the trainers keep: %v", err)
	}
	if _, err := LoadServed(filepath.Join(t.TempDir(), "none")); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Error(err)
	}
}
