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
	many := "label: {column: label, kind: number}\ncategorical:\n  - {column: city, separator: \"|\", max_length: 2, " +
		"weights: {column: age}}\n  - {column: age, table: t, ids: exact}\n"
	f.Add("label,age,city\n1.5,30|1,a|b\n0,7,c\n", many, false)
	f.Add("1 3:1.5 4:1 # x\n-1 qid:1 5:2\n", "format: libsvm\n", false)
	f.Add("2.5 3:1.5 4:1\n", "format: libfm\nlabel: {position: 1, kind: number}\ndense: [{position: 3, transform: "+
		"standardize}]\ncategorical: [{name: a, indices: [4, 9]}]\n", false)
	f.Add("u:token\tr:float\tt:float\n1\t5\t3\n2\t4\t2\n", "format: inter\nlabel: {column: r, kind: number}\n", false)
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
			var set *Files
			if set, err = openFile(file, s, 0.25); err != nil {
				return
			}
			for rank := range 2 {
				var src Source
				if src, err = set.Train(0, rank, 2); err != nil {
					return
				}
				var n int
				if n, err = drain(t, src, set.Schema()); err != nil {
					return
				}
				total += n
			}
			if int64(total) != set.TrainSize() {
				t.Errorf("two trainers read %d examples of %d", total, set.TrainSize())
			}
			shuffled, err := OpenFiles(Paths{file}, s, Options{HeldBy: HeldRandom, Held: 0.25, Shuffle: ShuffleExamples,
				Buffer: 3, MaxBad: 0.5})
			if err != nil {
				t.Errorf("read in order, but not shuffled: %v", err)
				return
			}
			src, err := shuffled.Train(0, 0, 1)
			if err != nil {
				t.Error(err)
			} else if n, err := drain(t, src, shuffled.Schema()); err != nil || int64(n)+shuffled.Bad() != shuffled.TrainSize() {
				t.Errorf("%d of %d shuffled examples, %d bad: %v", n, shuffled.TrainSize(), shuffled.Bad(), err)
			}
		}); n > 8<<20+1024*uint64(len(text)+len(schemaText)) && !zipped {
			t.Errorf("%d bytes made it allocate %d", len(text), n)
		}
		if err != nil {
			wantInvalid(t, err)
		}
	})
}

func drain(t *testing.T, src Source, s *Schema) (total int, err error) {
	defer src.Close()
	shape := s.Shape()
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
		if want := b.Offsets[b.N*shape.Categorical]; int(want) != len(b.Keys) ||
			shape.Weighted && len(b.Weights) != len(b.Keys) {
			t.Errorf("%d keys and %d weights, the offsets end at %d", len(b.Keys), len(b.Weights), want)
		}
		for _, l := range b.Labels[:b.N] {
			if l != 0 && l != 1 && s.Labels[0].Kind != KindNumber {
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
	f.Add([]byte("a long line,with,many,,values,behind each,other"), false, false)
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
		if !quotes && !trim {
			ends := cells(nil, line, ',', 0)
			if len(ends) != len(values)+1 {
				t.Fatalf("%q: %d cells, %d values", line, len(ends)-1, len(values))
			}
			for i, v := range values {
				if got := line[ends[i]+1 : ends[i+1]]; string(got) != string(v) {
					t.Errorf("%q: cell %d is %q, want %q", line, i, got, v)
				}
			}
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

// FuzzParquet reads any bytes as a Parquet file of clicks.
func FuzzParquet(f *testing.F) {
	for _, n := range []int{1, 40} {
		whole, err := os.ReadFile(writeClicks(f, n))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(whole)
		f.Add(whole[:len(whole)-9])
	}
	s := clicksSchema(f)
	path := filepath.Join(f.TempDir(), "x.parquet")
	f.Fuzz(func(t *testing.T, file []byte) {
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		set, err := openFile(path, s, 0)
		if err == nil {
			var src Source
			if src, err = set.Train(0, 0, 1); err == nil {
				_, err = drain(t, src, s)
			}
		}
		if code := rowraft.CodeOf(err); err != nil && code != rowraft.CodeInvalidArgument && code != rowraft.CodeCorrupt {
			t.Errorf("%v has code %v", err, code)
		}
	})
}
