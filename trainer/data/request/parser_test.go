package request

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
)

// kinds is a file with every kind of feature, and its schema.
const (
	kindsText = `label,age,income,city,level,tags,scores,item,"odd ""name"""
1,30,1000,Ulm,7,a|b,0.5|2,18446744073709551615,x
0,,-3.5,"B, ""c""",?,,,,
1,?,1e3,,11,c,-1.25e-3,7,y z
0,7,0,Ulm,2.5,a||b|?|c,1|2|3|4|5,0,?
`
	kindsSchema = `missing: ["?"]
label: {column: label}
dense:
  - {column: age, missing: -1}
  - {column: income, transform: log1p, mean: 2, std: 3}
  - {column: level, transform: standardize, mean: 1, std: 7}
categorical:
  - {column: city}
  - {column: age, name: decade, buckets: [10, 20, 30]}
  - {column: tags, separator: "|", weights: {column: scores}, pooling: mean, max_length: 2}
  - {column: item, table: items, ids: exact}
  - {column: city, name: place, table: items2}
  - {column: 'odd "name"'}
`
)

// kindsJSON has the examples of kindsText as people write them.
const kindsJSON = `{"examples": [
  {"label": 1, "age": 30, "income": 1000, "city": "Ulm", "level": 7, "tags": [["a", 0.5], ["b", 2]],
   "item": 18446744073709551615, "odd \"name\"": "x"},
  {"income": -3.5, "city": "B, \"c\"", "level": "?", "age": null},
  {"label": 1, "age": "?", "income": 1e3, "city": "", "level": 11, "tags": {"c": -1.25e-3}, "item": "7", "odd \"name\"": "y z"},
  {"age": 7, "income": 0, "city": "\u0055lm", "level": 2.5, "tags": ["a", null, "b", "?", "c"], "scores": [1, 2, 3, 4, 5],
   "item": 0, "odd \"name\"": "?"}
]}
`

func kindsValues() []Example {
	text := func(s string) Value { return Value{Text: s} }
	return []Example{
		{"age": text("30"), "income": text("1000"), "city": text("Ulm"), "level": text("7"), `odd "name"`: text("x"),
			"tags": {List: []string{"a", "b"}, Weights: []float64{0.5, 2}}, "item": text("18446744073709551615")},
		{"income": text("-3.5"), "city": text(`B, "c"`)},
		{"income": text("1e3"), "level": text("11"), "tags": {List: []string{"c"}, Weights: []float64{-1.25e-3}},
			"item": text("7"), `odd "name"`: text("y z")},
		{"age": text("7"), "income": text("0"), "city": text("Ulm"), "level": text("2.5"), "tags": text("a||b|?|c"),
			"scores": text("1|2|3|4|5"), "item": text("0")},
	}
}

// sameExamples fails unless both batches have the same features. Labels of requests are 0.
func sameExamples(t *testing.T, what string, got, want *data.Batch, s data.Shape) {
	t.Helper()
	if got.N != want.N {
		t.Fatalf("%s: %d examples, the file has %d", what, got.N, want.N)
	}
	offsets := want.N*s.Categorical + 1
	if !reflect.DeepEqual(got.Offsets[:offsets], want.Offsets[:offsets]) || !reflect.DeepEqual(got.Keys, want.Keys) {
		t.Errorf("%s: keys %v at %v, the file has %v at %v", what, got.Keys, got.Offsets[:offsets], want.Keys,
			want.Offsets[:offsets])
	}
	for _, pair := range [][2][]float32{{got.Dense[:got.N*s.Dense], want.Dense[:want.N*s.Dense]},
		{got.Weights, want.Weights}} {
		if len(pair[0]) != len(pair[1]) {
			t.Errorf("%s: %v, the file has %v", what, pair[0], pair[1])
			continue
		}
		for i := range pair[0] {
			if math.Float32bits(pair[0][i]) != math.Float32bits(pair[1][i]) {
				t.Errorf("%s: %v, the file has %v", what, pair[0], pair[1])
				break
			}
		}
	}
}

// firstBatch reads up to size examples of f.
func firstBatch(t *testing.T, f *data.Files, size int) *data.Batch {
	t.Helper()
	src, err := f.Train(0, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	b := data.NewBatch(size, f.Shape())
	if err := src.Next(b); err != nil {
		t.Fatal(err)
	}
	return b
}

func parserOf(t *testing.T, s *data.Schema) *Parser {
	t.Helper()
	p, err := NewParser(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestRequestsAreParsedAsFiles: examples of a request, in each form, have the bits of the same examples in a file.
func TestRequestsAreParsedAsFiles(t *testing.T) {
	for _, tc := range []struct {
		name, file, text, schema, json string
		values                         []Example
	}{
		{"every kind", "kinds.csv", kindsText, kindsSchema, kindsJSON, kindsValues()},
		{"libsvm", "a.svm", "1 3:16777217 4:0.1 9:1e-3 # x\n-1 qid:1 5:2\n0\n",
			"format: libsvm\ndense: [{position: 3, transform: standardize, mean: 16777216, std: 1}]\ncategorical:\n" +
				"  - {name: a, indices: [4, 9]}\n",
			`{"examples": [{"column 3": 16777217, "a": [[4, 0.1], [9, 1e-3]]}, {"a": {"5": 2}}, {}]}`,
			[]Example{{"column 3": {Text: "16777217"}, "a": {List: []string{"4", "9"}, Weights: []float64{0.1, 1e-3}}},
				{"a": {List: []string{"5"}, Weights: []float64{2}}}, {}}},
		{"no header, trimmed", "b.tsv", " 1 \t x \t 2.5 \n0\ty\t\n",
			"format: tsv\nheader: false\ntrim: true\nlabel: {position: 1}\ncategorical: [{position: 2, name: id}]\n" +
				"dense: [{position: 3}]\n",
			`{"examples": [{"id": " x ", "column 3": 2.5}, {"id": "y"}]}`,
			[]Example{{"id": {Text: " x "}, "column 3": {Text: "2.5"}}, {"id": {Text: "y"}}}},
		{"criteo", "c.tsv", "1" + strings.Repeat("\t3", 13) + strings.Repeat("\tab", 26) + "\n", "format: criteo\n",
			`{"examples": [{"C1":"ab","C2":"ab","C3":"ab","C4":"ab","C5":"ab","C6":"ab","C7":"ab","C8":"ab","C9":"ab",
			"C10":"ab","C11":"ab","C12":"ab","C13":"ab","C14":"ab","C15":"ab","C16":"ab","C17":"ab","C18":"ab","C19":"ab",
			"C20":"ab","C21":"ab","C22":"ab","C23":"ab","C24":"ab","C25":"ab","C26":"ab","column 2":3,"column 3":3,
			"column 4":3,"column 5":3,"column 6":3,"column 7":3,"column 8":3,"column 9":3,"column 10":3,"column 11":3,
			"column 12":3,"column 13":3,"column 14":3}]}`, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := schema(t, tc.schema)
			f, err := openFile(t, tc.file, tc.text, s)
			if err != nil {
				t.Fatal(err)
			}
			want := firstBatch(t, f, 16)
			p := parserOf(t, s)
			for range 2 { // nothing stays from one request to the next
				b, err := p.Text([]byte(tc.text), 4)
				if err != nil {
					t.Fatal(err)
				}
				sameExamples(t, "Text", b, want, f.Shape())
				if b, err = p.JSON([]byte(tc.json), 4); err != nil {
					t.Fatal(err)
				}
				sameExamples(t, "JSON", b, want, f.Shape())
				if tc.values == nil {
					continue
				}
				if b, err = p.Values(tc.values); err != nil {
					t.Fatal(err)
				}
				sameExamples(t, "Values", b, want, f.Shape())
			}
		})
	}
}

// TestBadRequestsNameExampleAndFeature: an error of a request says where it is.
func TestBadRequestsNameExampleAndFeature(t *testing.T) {
	p := parserOf(t, schema(t, kindsSchema))
	for _, tc := range []struct{ text, want string }{
		{`{"examples": [{"age": 1}, {"age": "old"}]}`, `example 1: age: "old"`},
		{`{"examples": [{"age": [1]}]}`, `example 0: age: a list, expected one number`},
		{`{"examples": [{"item": -3}]}`, `example 0: item: "-3", expected an id`},
		{`{"examples": [{"city": ["a", "b"]}]}`, `example 0: city: a list, expected one value`},
		{`{"examples": [{"tags": ["a"]}]}`, `example 0: tags: "a" has no weight`},
		{`{"examples": [{"tags": [["a", "heavy"]]}]}`, `example 0: scores: "heavy"`},
		{`{"examples": [{"tags": [["a"]]}]}`, `example 0: tags: a list in a list`},
		{`{"examples": [{"tags": ["a", "b"], "scores": [1]}]}`, `example 0: scores: 1 weights, tags has 2 values`},
		{`{"examples": [{"tags": "a|b", "scores": "1"}]}`, `example 0: scores: fewer numbers than tags`},
		{`{"examples": [{"tags": {"a": {}}}]}`, `example 0: tags: an object in a list`},
		{`{"examples": [{"city": "a"}, {"citty": "b"}]}`, `example 1: citty: the model has no such feature; it has age, inc`},
		{`{"examples": [{"city": "a", "city": "b"}]}`, `example 0: city: the feature is given twice`},
		{`{"examples": [3]}`, `example 0: want an object`},
		{`{"examples": [{"age": 1}, {}, {}, {}, {}]}`, `more than 4 examples`},
		{`{"examples": []}`, `one example or more`},
		{`{"examples": 3}`, `"examples": JSON: want {"examples"`},
		{`[]`, `want {"examples"`},
		{`{"examples": [{"age": 1,}]}`, `at byte`},
		{``, `JSON: `},
	} {
		_, err := p.JSON([]byte(tc.text), 4)
		if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.text, err, tc.want)
		}
	}
	header, _, _ := strings.Cut(kindsText, "\n")
	for _, tc := range []struct{ text, want string }{
		{header + "\n1,1,1,a,1,,,3,\n\n1,1,1,a,1,,,x,\n", `example 1, line 4: item: "x"`},
		{"age,city\n1,a\n", `the header has no column "income"`},
		{header + "\n", "only a header"},
		{"", "is empty"},
		{kindsText + "1,1,1,a,1,,,3,\n", "more than 4 examples"},
		{header + "\n1,2\n", "example 0, line 2: 2 columns, expected 9"},
	} {
		_, err := p.Text([]byte(tc.text), 4)
		if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.text, err, tc.want)
		}
	}
	_, err := p.Values([]Example{{}, {"tags": {List: []string{"a", "b"}, Weights: []float64{1}}}})
	if err == nil || !strings.Contains(err.Error(), "example 1: tags: 2 values and 1 weights") {
		t.Errorf("%v", err)
	}
	if _, err := NewParser(schema(t, "label: {column: l}\ncategorical: [{column: c}]\ndense: [{column: d, transform: "+
		"standardize}]\n")); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("a schema without its mean: %v", err)
	}
}

// FuzzRequest: any text is parsed, or refused as CodeInvalidArgument; lines have the examples of a file of them.
func FuzzRequest(f *testing.F) {
	f.Add(kindsText, kindsSchema)
	f.Add(kindsJSON, kindsSchema)
	f.Add("1 3:1.5 4:1 # x\n-1 qid:1 5:2\n", "format: libsvm\n")
	f.Add(`{"examples": [{"features": [[1, 2], 3, null, ["x\u0000", "\\\""]]}, {"features": {}}]}`, "format: libsvm\n")
	f.Add(`{"examples": [{"a": []}, {"a": [[]]}, {"a": [{}]}, {"a": true}]}`,
		"format: parquet\nlabel: {column: l}\ncategorical: [{column: a}]\n")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text, schemaText string) {
		file := filepath.Join(dir, "schema.yaml")
		writeOver(t, file, schemaText)
		s, err := data.LoadSchema(file)
		if err != nil || !s.Complete() || s.Format == data.FormatParquet && !strings.HasPrefix(text, "{") {
			return
		}
		p := parserOf(t, s)
		for _, parse := range []func([]byte, int) (*data.Batch, error){p.JSON, p.Text} {
			b, err := parse([]byte(text), 100)
			switch {
			case err != nil && rowraft.CodeOf(err) != rowraft.CodeInvalidArgument:
				t.Fatalf("%v: want CodeInvalidArgument", err)
			case err != nil:
				continue
			}
			offsets := b.Offsets[:b.N*p.shape.Categorical+1]
			if b.N < 1 || b.N > 100 || int(offsets[len(offsets)-1]) != len(b.Keys) ||
				p.shape.Weighted && len(b.Weights) != len(b.Keys) {
				t.Fatalf("%d examples, %d keys, %d weights, offsets %v", b.N, len(b.Keys), len(b.Weights), offsets)
			}
		}
		if json.Valid([]byte(text)) || strings.Contains(text, "\x00") {
			return
		}
		if b, err := p.Text([]byte(text), 1<<20); err == nil {
			unlabelled := *s
			unlabelled.Unlabelled = true
			set, err := openFile(t, "data.csv", text, &unlabelled)
			if err != nil {
				t.Fatalf("the file: %v", err)
			}
			sameExamples(t, "Text", b, firstBatch(t, set, b.N+1), set.Shape())
		}
	})
}

func writeOver(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// openFile opens a file with a text.
func openFile(t *testing.T, name, text string, s *data.Schema) (*data.Files, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	writeOver(t, path, text)
	return data.OpenFiles(data.Paths{path}, s, data.Options{})
}

// schema returns a schema of a YAML text.
func schema(t *testing.T, text string) *data.Schema {
	t.Helper()
	path := filepath.Join(t.TempDir(), "schema.yaml")
	writeOver(t, path, text)
	s, err := data.LoadSchema(path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The name of a feature is that of the feature, also where it is the column of another one.
func TestNamesThatAreColumnsToo(t *testing.T) {
	p := parserOf(t, schema(t, "label: {column: label}\ncategorical:\n  - {column: timestamp, name: hour}\n"+
		"  - {column: hour, name: local}\n"))
	for text, want := range map[string]string{
		`{"examples": [{"hour": 17, "local": 3}]}`:     "",
		`{"examples": [{"timestamp": 17, "hour": 3}]}`: "twice",
	} {
		_, err := p.JSON([]byte(text), 9)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// Lists of a small request may not take many times its bytes.
func TestListsAreBounded(t *testing.T) {
	p := parserOf(t, schema(t, "label: {column: label}\ncategorical: [{column: a}]\n"))
	_, err := p.JSON([]byte(`{"examples": [{"a": [`+strings.Repeat("0,", maxItems)+`0]}]}`), 9)
	if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument || !strings.Contains(err.Error(), "values in the lists") ||
		cap(p.items) > 2*maxItems {
		t.Errorf("%v, room for %d values", err, cap(p.items))
	}
}
