package data

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/rowraft/rowraft"
)

// writeFiles writes files into one folder, compressed as their names say.
func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		var b bytes.Buffer
		var w io.WriteCloser
		switch filepath.Ext(name) {
		case ".gz":
			w = gzip.NewWriter(&b)
		case ".zst":
			w, _ = zstd.NewWriter(&b)
		}
		if w == nil {
			b.WriteString(text)
		} else if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		} else if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// numbered returns the lines of examples from ≤ i < to, whose dense number is i.
func numbered(from, to int, header bool) string {
	var b strings.Builder
	if header {
		b.WriteString("y,x,c\n")
	}
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "%d,%d,v%d\n", i%2, i, i)
	}
	return b.String()
}

const numberedSchema = "label: {column: y}\ndense: [{column: x}]\ncategorical: [{column: c}]\n"

func numbers(b *Batch) (out []int) {
	for _, x := range b.Dense {
		out = append(out, int(x))
	}
	return out
}

func openThree(t *testing.T, opt Options) *Files {
	t.Helper()
	dir := writeFiles(t, map[string]string{"a.csv": numbered(0, 2500, true), "b-1.csv.gz": numbered(2500, 4000, true),
		"b-2.csv.zst": numbered(4000, 7000, true)})
	f, err := OpenFiles(Paths{filepath.Join(dir, "a.csv"), filepath.Join(dir, "b-*")}, schema(t, numberedSchema), opt)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Files of all compressions are one data set, in the order in which they are named. A range begins and ends anywhere.
func TestSeveralFilesAreOneDataSet(t *testing.T) {
	f := openThree(t, Options{Held: 0.1})
	src, err := f.Train(0, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	got := numbers(all(t, src, f.Shape(), 512))
	for i, x := range got {
		if x != i {
			t.Fatalf("example %d has the number %d", i, x)
		}
	}
	if len(got) != 6300 {
		t.Errorf("%d training examples, want 6300 of 7000", len(got))
	}
	for _, r := range [][2]int64{{0, 5}, {1023, 1025}, {2400, 2600}, {3999, 4001}, {6290, 9000}} {
		src, err := f.Range(0, r[0], r[1])
		if err != nil {
			t.Fatal(err)
		}
		got := numbers(all(t, src, f.Shape(), 64))
		if len(got) != int(min(r[1], 6300)-r[0]) || got[0] != int(r[0]) {
			t.Errorf("range %v: %d examples from %d", r, len(got), got[0])
		}
	}
	if src, err = f.Held(); err != nil {
		t.Fatal(err)
	}
	if got := numbers(all(t, src, f.Shape(), 64)); len(got) != 700 || got[0] != 6300 || got[699] != 6999 {
		t.Errorf("%d held-out examples, want the last 700", len(got))
	}
}

// The order of an epoch is a permutation that depends on seed and epoch alone. Ranges, ranks and skipping give the same
// order in parts.
func TestShuffledOrderIsAFunctionOfSeedAndEpoch(t *testing.T) {
	for _, opt := range []Options{
		{Held: 0.1, Shuffle: ShuffleExamples, Buffer: 1500, Seed: 7},
		{Held: 0.1, Shuffle: ShuffleFiles, Seed: 7},
		{Held: 0.3, HeldBy: HeldRandom, Shuffle: ShuffleExamples, Buffer: 1 << 20, Seed: 7},
		{Held: 0.3, HeldBy: HeldRandom, Seed: 7},
	} {
		t.Run(opt.Shuffle+opt.HeldBy, func(t *testing.T) {
			f := openThree(t, opt)
			epoch := func(f *Files, e int64) []int {
				src, err := f.Train(e, 0, 1)
				if err != nil {
					t.Fatal(err)
				}
				return numbers(all(t, src, f.Shape(), 100))
			}
			whole := epoch(f, 1)
			if again := epoch(openThree(t, opt), 1); !slices.Equal(whole, again) {
				t.Error("two opened sets have different orders in one epoch")
			}
			if opt.Shuffle != "" {
				// Three files have six orders, of which two may be equal.
				epochs, seeds := 0, 0
				for e := range int64(5) {
					if !slices.Equal(whole, epoch(f, 2+e)) {
						epochs++
					}
					opt.Seed++
					if !slices.Equal(whole, epoch(openThree(t, opt), 1)) {
						seeds++
					}
				}
				if epochs < 3 || seeds < 3 {
					t.Errorf("of 5 other epochs and seeds, %d and %d have another order", epochs, seeds)
				}
			}
			src, err := f.Held()
			if err != nil {
				t.Fatal(err)
			}
			held := numbers(all(t, src, f.Shape(), 100))
			if int64(len(held)) != f.HeldSize() || int64(len(whole)) != f.TrainSize() ||
				math.Abs(float64(len(held))/7000-opt.Held) > 0.02 {
				t.Errorf("%d held-out and %d training examples, the set has %d and %d", len(held), len(whole), f.HeldSize(),
					f.TrainSize())
			}
			sorted := slices.Sorted(slices.Values(append(held, whole...)))
			for i, x := range sorted {
				if x != i {
					t.Fatalf("example %d is missing or comes twice", i)
				}
			}
			for _, r := range [][2]int64{{0, 9}, {1490, 1510}, {2000, 5000}} {
				src, err := f.Range(1, r[0], r[1])
				if err != nil {
					t.Fatal(err)
				}
				to := min(r[1], int64(len(whole)))
				if got := numbers(all(t, src, f.Shape(), 64)); !slices.Equal(got, whole[r[0]:to]) {
					t.Errorf("range %v is not that part of the epoch", r)
				}
			}
			split, err := f.Range(1, 0, 300) // split after split, as the scheduler hands them out
			if err != nil {
				t.Fatal(err)
			}
			var splits []int
			b := NewBatch(64, f.Shape())
			for from := int64(0); from < 3000; from += 300 {
				if from > 0 && !split.(Continuer).Continue(1, from, from+300) {
					t.Fatalf("the source does not continue at %d", from)
				}
				for split.Next(b) == nil {
					splits = append(splits, numbers(&Batch{Dense: b.Dense[:b.N]})...)
				}
			}
			if !slices.Equal(splits, whole[:3000]) {
				t.Errorf("%d examples in splits, want the first 3000 of the epoch", len(splits))
			}
			for rank := range 3 {
				src, err := f.Train(1, rank, 3)
				if err != nil {
					t.Fatal(err)
				}
				if err := src.Skip(600); err != nil {
					t.Fatal(err)
				}
				got := numbers(all(t, src, f.Shape(), 64))
				for i, x := range got {
					if want := whole[3*(600+i)+rank]; x != want {
						t.Fatalf("rank %d: example %d is %d, want %d", rank, 600+i, x, want)
					}
				}
			}
		})
	}
}

// The buffer and the permuted blocks spread the examples of a file over the epoch: the mean of the first tenth is that
// of all, and neighbours are far from each other.
func TestShuffledExamplesAreMixed(t *testing.T) {
	path := filepath.Join(writeFiles(t, map[string]string{"x.csv": numbered(0, 60000, true)}), "x.csv")
	f, err := OpenFiles(Paths{path}, schema(t, numberedSchema), Options{Shuffle: ShuffleExamples, Buffer: 20000})
	if err != nil {
		t.Fatal(err)
	}
	src, _ := f.Train(0, 0, 1)
	got := numbers(all(t, src, f.Shape(), 512))
	mean, near := 0.0, 0
	for i, x := range got[:6000] {
		mean += float64(x) / 6000
		if i > 0 && max(x-got[i-1], got[i-1]-x) < 10 {
			near++
		}
	}
	if math.Abs(mean-30000) > 6000 || near > 30 {
		t.Errorf("the first tenth has the mean %.0f and %d near neighbours, want 30000 and few", mean, near)
	}
}

func TestBadLinesMayBeSkipped(t *testing.T) {
	text := numbered(0, 3000, true)
	text = strings.Replace(text, ",10,v10", ",ten,v10", 1)
	text = strings.Replace(text, ",20,v20", ",20,v20,more", 1)
	text = strings.Replace(text, "\n1,31,", "\nyes,31,", 1)
	dir := writeFiles(t, map[string]string{"x.csv": text})
	s := strings.Replace(numberedSchema, "{column: y}", `{column: y, negative: ["0"]}`, 1)
	open := func(most float64, shuffle string) (*Files, error) {
		return OpenFiles(Paths{filepath.Join(dir, "x.csv")}, schema(t, s), Options{MaxBad: most, Shuffle: shuffle})
	}
	for _, shuffle := range []string{ShuffleNone, ShuffleExamples} {
		f, err := open(0.003, shuffle)
		if err != nil {
			t.Fatal(err)
		}
		var notes []string
		f.OnNote(func(text string) { notes = append(notes, text) })
		src, err := f.Train(0, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		got, read := 0, 0
		b := NewBatch(64, f.Shape())
		for src.Next(b) == nil {
			got, read = got+b.N, read+b.Read
		}
		if got != 2997 || read != 3000 || f.Bad() != 3 {
			t.Errorf("%s: %d examples of %d read, %d bad; want 2997, 3000, 3", shuffle, got, read, f.Bad())
		}
		if all := strings.Join(notes, "\n"); len(notes) != 3 || !strings.Contains(all, `x.csv:12: x: "ten"`) ||
			!strings.Contains(all, "x.csv:22: 4 columns") || !strings.Contains(all, `x.csv:33: y: label "yes"`) {
			t.Errorf("%s: notes %q", shuffle, notes)
		}
	}
	f, err := open(0.002, ShuffleNone)
	if err != nil {
		t.Fatal(err)
	}
	src, _ := f.Train(0, 0, 1)
	b := NewBatch(64, f.Shape())
	for err == nil {
		err = src.Next(b)
	}
	if err == io.EOF || !strings.Contains(err.Error(), "x.csv:33") || !strings.Contains(err.Error(), "3 of 32 lines") ||
		rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("above the share: %v, want the line and the counts", err)
	}
	if _, err := open(0, ShuffleNone); err == nil || !strings.Contains(err.Error(), "x.csv:33") {
		t.Errorf("without a share: %v, want the first label that is wrong", err)
	}
}

// A feature has many values with weights, of which the last ones count; features of one table share its keys; exact ids
// are keys; a missing exact id is no value.
func TestManyValuesTablesAndIDs(t *testing.T) {
	s := schema(t, `
label: {column: y}
categorical:
  - {column: genres, separator: "|", weights: {column: w}, pooling: mean}
  - {column: item, table: items, dim: 8, ids: exact}
  - {column: history, table: items, dim: 8, ids: exact, separator: " ", max_length: 3}
  - {column: tag, table: tags}
  - {column: tag2, name: other, table: tags}
`)
	dir := writeFiles(t, map[string]string{"x.csv": "y,genres,w,item,history,tag,tag2\n" +
		"1,a|b,0.5|-2,7,1 2 3 4,x,x\n0,,,,,,y\n1,c,1,18446744073709551615,5,x,z\n"})
	f, err := OpenFiles(Paths{filepath.Join(dir, "x.csv")}, s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	src, _ := f.Train(0, 0, 1)
	defer src.Close()
	b := NewBatch(8, f.Shape())
	if err := src.Next(b); err != nil {
		t.Fatal(err)
	}
	wantKeys := []rowraft.Key{key("genres", "a"), key("genres", "b"), 7, 2, 3, 4, key("tags", "x"), key("tags", "x"),
		key("tags", ""), key("tags", "y"),
		key("genres", "c"), math.MaxUint64, 5, key("tags", "x"), key("tags", "z")}
	wantOffsets := []int32{0, 2, 3, 6, 7, 8, 8, 8, 8, 9, 10, 11, 12, 13, 14, 15}
	wantWeights := []float32{0.5, -2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}
	if !slices.Equal(b.Keys, wantKeys) || !slices.Equal(b.Offsets[:16], wantOffsets) ||
		!slices.Equal(b.Weights, wantWeights) {
		t.Errorf("keys %d\noffsets %v\nweights %v", b.Keys, b.Offsets[:16], b.Weights)
	}
	for line, want := range map[string]string{
		"1,a|b,0.5,7,1,x,x": "w: fewer numbers than genres has values",
		"1,a,0.5|1,7,1,x,x": "w: more numbers than genres has values",
		"1,a,1,7a,1,x,x":    `item: "7a", expected an id`, "1,a,x,7,1,x,x": `w: "x", expected a finite number`,
		"1,a,1,7,18446744073709551616,x,x": `history: "18446744073709551616", expected an id`,
	} {
		dir := writeFiles(t, map[string]string{"x.csv": "y,genres,w,item,history,tag,tag2\n" + line + "\n"})
		if _, err := OpenFiles(Paths{filepath.Join(dir, "x.csv")}, s, Options{}); err == nil ||
			!strings.Contains(err.Error(), "x.csv:2: "+want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}

func TestLibSVM(t *testing.T) {
	const text = "+1 1:0.5 7:2 12:1 # a comment\n-1 qid:3 8:1\n"
	read := func(s *Schema) *Batch {
		t.Helper()
		f, err := OpenFiles(Paths{filepath.Join(writeFiles(t, map[string]string{"x.svm": text}), "x.svm")}, s, Options{})
		if err != nil {
			t.Fatal(err)
		}
		src, _ := f.Train(0, 0, 1)
		defer src.Close()
		b := NewBatch(8, f.Shape())
		if err := src.Next(b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	b := read(schema(t, "format: libsvm\n"))
	want := []rowraft.Key{key("features", "1"), key("features", "7"), key("features", "12"), key("features", "8")}
	if b.N != 2 || b.Labels[0] != 1 || b.Labels[1] != 0 || !slices.Equal(b.Keys, want) ||
		!slices.Equal(b.Weights, []float32{0.5, 2, 1, 1}) || !slices.Equal(b.Offsets[:3], []int32{0, 3, 4}) {
		t.Errorf("one feature: %+v", b)
	}
	b = read(schema(t, "format: libfm\nlabel: {position: 1, kind: number}\ndense: [{position: 1, missing: -1}]\n"+
		"categorical:\n  - {name: user, indices: [7, 9], table: users, ids: exact}\n  - {name: item, indices: [10, 12]}\n"))
	if !slices.Equal(b.Labels[:2], []float32{1, -1}) || !slices.Equal(b.Dense[:2], []float32{0.5, -1}) ||
		!slices.Equal(b.Keys, []rowraft.Key{7, key("item", "12"), 8}) ||
		!slices.Equal(b.Offsets[:5], []int32{0, 1, 2, 3, 3}) {
		t.Errorf("three features: %+v", b)
	}
	dir := writeFiles(t, map[string]string{"x.svm": "1 1:2\n1 a:3\n"})
	f, err := OpenFiles(Paths{filepath.Join(dir, "x.svm")}, schema(t, "format: libsvm\n"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	src, _ := f.Train(0, 0, 1)
	if err := src.Next(NewBatch(4, f.Shape())); err == nil ||
		!strings.Contains(err.Error(), `x.svm:2: "a:3", expected index:value`) {
		t.Errorf("a bad index: %v", err)
	}
}

// The header of a RecBole file names the features; a float is standardized over the training examples.
func TestInter(t *testing.T) {
	dir := writeFiles(t, map[string]string{"x.inter": "user:token\titem:token\trating:float\ttags:token_seq\ttime:float\n" +
		"u1\ti1\t5\ta b\t1\nu2\ti1\t3\t\t3\nu1\ti2\t4\tb\t2\nu9\ti9\t4\tb\t99\n"})
	f, err := OpenFiles(Paths{filepath.Join(dir, "x.inter")},
		schema(t, "format: inter\nlabel: {column: rating, kind: number}\n"), Options{Held: 0.25})
	if err != nil {
		t.Fatal(err)
	}
	src, _ := f.Train(0, 0, 1)
	b := all(t, src, f.Shape(), 8)
	root := float32(1 / math.Sqrt(2.0/3))
	if !slices.Equal(b.Labels, []float32{5, 3, 4}) || len(b.Dense) != 3 || math.Abs(float64(b.Dense[0]+root)) > 1e-6 ||
		b.Dense[2] != 0 || !slices.Equal(b.Keys[:4], []rowraft.Key{key("user", "u1"), key("item", "i1"), key("tags", "a"),
		key("tags", "b")}) {
		t.Errorf("%+v", b)
	}
	if d := f.Schema().Dense[0]; d.Mean != 2 || math.Abs(d.Std-math.Sqrt(2.0/3)) > 1e-15 {
		t.Errorf("mean %v, std %v of 1, 3, 2", d.Mean, d.Std)
	}
}

func TestSortedLabelsAreReported(t *testing.T) {
	line := func(y int) string { return fmt.Sprintf("%d,1,c\n", y) }
	sorted := "y,x,c\n" + strings.Repeat(line(0), 500) + strings.Repeat(line(1), 500)
	r := rand.New(rand.NewPCG(1, 2))
	mixed := "y,x,c\n"
	for range 1000 {
		mixed += line(r.IntN(2))
	}
	for _, tc := range []struct {
		text string
		opt  Options
		warn bool
	}{
		{sorted, Options{Held: 0.2}, true},
		{sorted, Options{Held: 0.2, HeldBy: HeldRandom}, true},
		{sorted, Options{Held: 0.2, HeldBy: HeldRandom, Shuffle: ShuffleExamples}, false},
		{mixed, Options{Held: 0.2}, false},
	} {
		path := filepath.Join(writeFiles(t, map[string]string{"x.csv": tc.text}), "x.csv")
		f, err := OpenFiles(Paths{path}, schema(t, numberedSchema), tc.opt)
		if err != nil {
			t.Fatal(err)
		}
		if text, warning := f.Describe(); (warning != "") != tc.warn || !strings.Contains(text, "held out: ") {
			t.Errorf("%+v: %q, %q", tc.opt, text, warning)
		}
	}
}

func TestPathsThatNameNoFiles(t *testing.T) {
	dir := writeFiles(t, map[string]string{"a.csv": numbered(0, 3, true)})
	for want, paths := range map[string]Paths{
		"no file matches": {filepath.Join(dir, "b-*")}, "given twice": {filepath.Join(dir, "a.csv"), filepath.Join(dir, "*")},
		"is a folder": {dir}, "no such file": {filepath.Join(dir, "b.csv")},
	} {
		if _, err := OpenFiles(paths, schema(t, numberedSchema), Options{}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", paths, err, want)
		}
	}
}

// criteoLike writes examples of 40 columns: a label, 13 counts and 26 hashes.
func criteoLike(b *testing.B, n int) string {
	b.Helper()
	r := rand.New(rand.NewPCG(5, 6))
	var text []byte
	for range n {
		text = append(text, byte('0'+r.IntN(2)))
		for range 13 {
			text = strconv.AppendInt(append(text, ','), int64(math.Exp(r.Float64()*7)), 10)
		}
		for range 26 {
			text = fmt.Appendf(append(text, ','), "%08x", r.Uint32())
		}
		text = append(text, '\n')
	}
	path := filepath.Join(b.TempDir(), "x.csv")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		b.Fatal(err)
	}
	return path
}

// cpu is the processor time of this process. Other processes of a busy machine do not change it.
func cpu() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkCSV reads and parses an uncompressed file of 40 columns.
func BenchmarkCSV(b *testing.B) {
	s := Schema{Format: formatCriteo}
	if err := s.complete(); err != nil {
		b.Fatal(err)
	}
	path := criteoLike(b, 50_000)
	for _, opt := range []Options{{}, {Shuffle: ShuffleExamples, Buffer: 16 << 10}} {
		b.Run("shuffle "+opt.Shuffle, func(b *testing.B) {
			f, err := OpenFiles(Paths{path}, &s, opt)
			if err != nil {
				b.Fatal(err)
			}
			batch := NewBatch(512, f.Shape())
			open := func() Source {
				src, err := f.Train(0, 0, 1)
				if err != nil {
					b.Fatal(err)
				}
				return src
			}
			src := open()
			b.ReportAllocs()
			n, began := 0, cpu()
			for b.Loop() { // a batch
				if err := src.Next(batch); err == io.EOF {
					b.StopTimer()
					src.Close()
					src = open()
					b.StartTimer()
				} else if err != nil {
					b.Fatal(err)
				}
				n += batch.N
			}
			b.ReportMetric(float64(n)/(cpu()-began).Seconds(), "examples/cpu-s")
		})
	}
	b.Run("index", func(b *testing.B) {
		n, began := int64(0), cpu()
		for b.Loop() {
			f, err := OpenFiles(Paths{path}, &s, Options{})
			if err != nil {
				b.Fatal(err)
			}
			n += f.size()
		}
		b.ReportMetric(float64(n)/(cpu()-began).Seconds(), "examples/cpu-s")
	})
}
