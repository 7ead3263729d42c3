package data

import (
	"bytes"
	"compress/gzip"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/allocs"
)

// FuzzFile reads any text with any schema, as it is or gunzipped: examples are
// finite numbers, every share together is the whole, and what is wrong is said as
// CodeInvalidArgument.
func FuzzFile(f *testing.F) {
	csv := "label,age,city\n1,30,\"a \"\"b\"\"\"\n0,,c\n"
	for _, s := range []string{
		"label: {column: label}\ndense: [{column: age}]\ncategorical: [{column: city}]\n",
		"header: false\nlabel: {position: 1}\ncategorical: [{position: 3, buckets: [1, 2]}]\n",
		"format: tsv\ntrim: true\nmissing: [\"?\"]\nlabel: {position: 1, negative: [\"0\"]}\ncategorical: [{position: 1}]\n",
	} {
		f.Add(csv, s, false)
		f.Add(strings.ReplaceAll(csv, ",", "\t"), s, false)
	}
	f.Add("0\t1\t\t3\n", "format: criteo\n", false)
	f.Add("\xef\xbb\xbflabel,city\r\n1,x\r\n", "label: {column: label}\ncategorical: [{column: city}]\n", false)
	f.Add("1,1e999,x\n", "header: false\nlabel: {position: 1}\ndense: [{position: 2}]\ncategorical: [{position: 3}]\n",
		false)
	f.Add("1,\"x\n", "header: false\nlabel: {position: 1}\ncategorical: [{position: 2}]\n", false)
	var gz bytes.Buffer
	w := gzip.NewWriter(&gz)
	io.WriteString(w, csv)
	w.Close()
	f.Add(gz.String(), "label: {column: label}\ncategorical: [{column: city}]\n", true)
	f.Add(gz.String()[:20], "label: {column: label}\ncategorical: [{column: city}]\n", true)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text, schemaText string, zipped bool) {
		file, schemaFile := filepath.Join(dir, "data.csv"), filepath.Join(dir, "schema.yaml")
		if zipped {
			file += ".gz"
		}
		for path, text := range map[string]string{file: text, schemaFile: schemaText} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, err := LoadSchema(schemaFile)
		if err != nil {
			wantInvalid(t, err)
			return
		}
		if s.Shape().Dense+s.Shape().Categorical > 1000 {
			return
		}
		total := 0
		if n := allocs.Bytes(func() {
			var set *File
			if set, err = OpenFile(file, s, 0.25); err != nil {
				return
			}
			for rank := range 2 {
				var src Source
				if src, err = set.Train(rank, 2); err != nil {
					return
				}
				var n int
				if n, err = drain(t, src, s.Shape()); err != nil {
					return
				}
				total += n
			}
			if int64(total) != set.TrainSize() {
				t.Errorf("two trainers read %d examples of %d", total, set.TrainSize())
			}
		}); n > 8<<20+1024*uint64(len(text)+len(schemaText)) && !zipped {
			t.Errorf("%d bytes made it allocate %d", len(text), n)
		}
		if err != nil {
			wantInvalid(t, err)
		}
	})
}

func drain(t *testing.T, src Source, shape Shape) (total int, err error) {
	defer src.Close()
	b := NewBatch(3, shape)
	for {
		if err := src.Next(b); err == io.EOF {
			return total, nil
		} else if err != nil {
			return total, err
		}
		total += b.N
		for _, x := range b.Dense[:b.N*shape.Dense] {
			if math.IsNaN(float64(x)) {
				t.Errorf("a dense feature is %v", x)
			}
		}
		for _, l := range b.Labels[:b.N] {
			if l != 0 && l != 1 {
				t.Errorf("a label is %v", l)
			}
		}
	}
}

func wantInvalid(t *testing.T, err error) {
	t.Helper()
	if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("%v has code %v, want CodeInvalidArgument", err, rowraft.CodeOf(err))
	}
}

// FuzzSplit: values joined again with quotes split into the same values.
func FuzzSplit(f *testing.F) {
	for _, line := range []string{`a,b,c`, `"a","b ""x""",`, `"open`, `"a"b,c`, ``, `,`, ` "a" , b `} {
		f.Add([]byte(line), true, false)
		f.Add([]byte(line), false, true)
		f.Add([]byte(line), true, true)
	}
	f.Fuzz(func(t *testing.T, line []byte, quotes, trim bool) {
		if bytes.ContainsAny(line, "\n") {
			return
		}
		s := splitter{separator: ',', quotes: quotes, trim: trim}
		values, err := s.split(line)
		if err != nil {
			if !quotes {
				t.Errorf("%q without quotes: %v", line, err)
			}
			return
		}
		var again []byte
		for i, v := range values {
			if i > 0 {
				again = append(again, ',')
			}
			if quotes {
				again = append(append(append(again, '"'), bytes.ReplaceAll(v, []byte{'"'}, []byte(`""`))...), '"')
			} else {
				again = append(again, v...)
			}
		}
		want := make([]string, len(values))
		for i, v := range values {
			want[i] = string(v)
		}
		second := splitter{separator: ',', quotes: quotes, trim: trim}
		got, err := second.split(again)
		if err != nil || len(got) != len(want) {
			t.Fatalf("%q splits into %q, joined %q into %q, %v", line, want, again, got, err)
		}
		for i := range got {
			if string(got[i]) != want[i] {
				t.Errorf("%q splits into %q, joined %q into %q", line, want, again, got)
			}
		}
	})
}
