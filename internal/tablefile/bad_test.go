package tablefile

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// npyFile returns a .npy file with any header.
func npyFile(dict string, data int) []byte {
	b := append([]byte(npyMagic+"\x01\x00"), 0, 0)
	binary.LittleEndian.PutUint16(b[8:], uint16(len(dict)))
	return append(append(b, dict...), make([]byte, data)...)
}

func safetensorsFile(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

const (
	f4      = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n"
	u8      = "{'descr': '<u8', 'fortran_order': False, 'shape': (2,), }\n"
	ids2    = `"ids":{"dtype":"U64","shape":[2],"data_offsets":[24,40]}`
	vector2 = `"vectors":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}`
)

// TestBadNPY: Open reports the error before a row is read.
func TestBadNPY(t *testing.T) {
	good := npyFile(f4, 24)
	with := func(old, new string) []byte { return npyFile(strings.Replace(f4, old, new, 1), 24) }
	for _, tc := range []struct {
		name    string
		vectors []byte
		ids     []byte
		code    rowraft.Code
		says    string
	}{
		{"good", good, nil, 0, ""},
		{"Python 2 and no spaces", npyFile("{'descr':'<f4','fortran_order':False,'shape':(2L,3L)}", 24), nil, 0, ""},
		{"version 2", append([]byte(npyMagic+"\x02\x00"),
			append(append(binary.LittleEndian.AppendUint32(nil, uint32(len(f4))), f4...), make([]byte, 24)...)...), nil, 0, ""},
		{"int64 ids", good, npyFile(strings.Replace(u8, "<u8", "<i8", 1), 16), 0, ""},
		{"empty", nil, nil, rowraft.CodeCorrupt, "does not begin"},
		{"no magic", append([]byte("x"), good[1:]...), nil, rowraft.CodeCorrupt, "does not begin"},
		{"version 4", append([]byte(npyMagic+"\x04\x00"), good[8:]...), nil, rowraft.CodeVersionTooNew, "version 4"},
		{"cut within the header", good[:40], nil, rowraft.CodeCorrupt, "header is said to have"},
		{"version 2, cut", []byte(npyMagic + "\x02\x00\x01\x00"), nil, rowraft.CodeCorrupt, "within its header"},
		{"cut within the numbers", good[:len(good)-1], nil, rowraft.CodeCorrupt, "23 bytes of numbers"},
		{"longer", append(good, 0), nil, rowraft.CodeCorrupt, "25 bytes of numbers"},
		{"overflow", with("(2, 3)", "(4611686018427387904, 4)"), nil, rowraft.CodeCorrupt, "needs another number"},
		{"negative", with("(2, 3)", "(-2, -3)"), nil, rowraft.CodeCorrupt, "impossible shape"},
		{"no tuple", with("(2, 3)", "2"), nil, rowraft.CodeCorrupt, "tuple"},
		{"Fortran", with("False", "True"), nil, rowraft.CodeInvalidArgument, "ascontiguousarray"},
		{"big-endian", with("<f4", ">f4"), nil, rowraft.CodeInvalidArgument, "want <f4, <f2 or <f8"},
		{"records", with("'<f4'", "[('a', '<f4')]"), nil, rowraft.CodeInvalidArgument, "records"},
		{"objects", with("'<f4'", "'|O'"), nil, rowraft.CodeInvalidArgument, "numbers are"},
		{"three dimensions", with("(2, 3)", "(1, 2, 3)"), nil, rowraft.CodeInvalidArgument, "3 dimensions"},
		{"one dimension", npyFile(strings.Replace(f4, "(2, 3)", "(6,)", 1), 24), nil, rowraft.CodeInvalidArgument,
			"want rows and numbers"},
		{"twice", with("'descr'", "'shape': (2, 3), 'descr'"), nil, rowraft.CodeCorrupt, "different names"},
		{"unknown name", with("'descr'", "'order': 'C', 'descr'"), nil, rowraft.CodeCorrupt, "numpy does not use"},
		{"code", npyFile("{'descr': __import__('os'), }", 24), nil, rowraft.CodeInvalidArgument, "records"},
		{"lacks the shape", npyFile("{'descr': '<f4', 'fortran_order': False}", 24), nil, rowraft.CodeCorrupt, "lacks"},
		{"no dim", npyFile("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 0)}", 0), nil,
			rowraft.CodeInvalidArgument, "vectors of 0 numbers"},
		{"too wide", npyFile("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4097)}", 0),
			npyFile(strings.Replace(u8, "(2,)", "(0,)", 1), 0), rowraft.CodeInvalidArgument, "want 1 to 4096"},
		{"ids of floats", good, npyFile(strings.Replace(u8, "<u8", "<f8", 1), 16), rowraft.CodeInvalidArgument,
			"want <u8 or <i8"},
		{"other number of ids", good, npyFile(strings.Replace(u8, "(2,)", "(3,)", 1), 24), rowraft.CodeInvalidArgument,
			"an id for each vector"},
		{"no ids", good, []byte{}, rowraft.CodeNotFound, "x.ids.npy"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			disk := vfs.NewMem()
			if tc.ids == nil {
				tc.ids = npyFile(u8, 16)
			}
			writeFile(t, disk, "x.npy", tc.vectors)
			if len(tc.ids) > 0 {
				writeFile(t, disk, "x.ids.npy", tc.ids)
			}
			wantOpen(t, disk, "x.npy", tc.code, tc.says)
		})
	}
}

func TestBadSafetensors(t *testing.T) {
	good := safetensorsFile("{"+vector2+","+ids2+"}", 40)
	file := func(header string) []byte { return safetensorsFile(header, 40) }
	with := func(old, new string) []byte {
		return file(strings.Replace("{"+vector2+","+ids2+"}", old, new, 1))
	}
	for _, tc := range []struct {
		name string
		file []byte
		code rowraft.Code
		says string
	}{
		{"good", good, 0, ""},
		{"ids first",
			file(
				`{"ids":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},"vectors":{"dtype":"F32","shape":[2,3],"data_offsets":[16,40]}}  `), 0, ""},
		{"one more tensor", safetensorsFile("{"+vector2+","+ids2+`,"x":{"dtype":"F4","shape":[3],"data_offsets":[40,42]}}`,
			42), 0, ""},
		{"empty", nil, rowraft.CodeCorrupt, "want a header"},
		{"header beyond the file", good[:30], rowraft.CodeCorrupt, "header is said to have"},
		{"header beyond everything",
			append(bytes.Repeat([]byte{0xff}, 8), good[8:]...), rowraft.CodeCorrupt, "header is said to have"},
		{"no JSON", file("[]"), rowraft.CodeCorrupt, "no JSON object"},
		{"half JSON", file("{" + vector2), rowraft.CodeCorrupt, "header"},
		{"something behind the JSON", file("{" + vector2 + "," + ids2 + "} x"), rowraft.CodeCorrupt, "follow the JSON"},
		{"twice", file("{" + vector2 + "," + vector2 + "," + ids2 + "}"), rowraft.CodeCorrupt, "twice"},
		{"metadata twice", file(`{"__metadata__":{},"__metadata__":{},` + vector2 + "," + ids2 + "}"), rowraft.CodeCorrupt,
			"twice"},
		{"cut", good[:len(good)-1], rowraft.CodeCorrupt, "lies at"},
		{"longer", append(good, 0), rowraft.CodeCorrupt, "its tensors take 40 bytes, 41"},
		{"overlapping", with("[24,40]", "[20,36]"), rowraft.CodeCorrupt, "want it to begin at 24"},
		{"a hole", with("[24,40]", "[25,41]"), rowraft.CodeCorrupt, "want it to begin at 24"},
		{"backwards", with("[24,40]", "[24,8]"), rowraft.CodeCorrupt, "want it to begin"},
		{"negative", with("[0,24]", "[-24,0]"), rowraft.CodeCorrupt, "header"},
		{"shape beyond its bytes", with("[2,3]", "[2,4]"), rowraft.CodeCorrupt, "needs another number"},
		{"overflow", with("[2,3]", "[4611686018427387904,4]"), rowraft.CodeCorrupt, "needs another number"},
		{"other names", with(`"ids"`, `"keys"`), rowraft.CodeInvalidArgument,
			`no tensors "ids" and "vectors", but "[keys vectors]"`},
		{"whole numbers", with(`"F32"`, `"I32"`), rowraft.CodeInvalidArgument, "want F32, BF16, F16 or F64"},
		{"float ids", with(`"U64"`, `"F64"`), rowraft.CodeInvalidArgument, "want U64 or I64"},
		{"a flat vector", with("[2,3]", "[6]"), rowraft.CodeInvalidArgument, "want rows and numbers"},
		{"fewer ids",
			file(
				`{"vectors":{"dtype":"F32","shape":[2,4],"data_offsets":[0,32]},"ids":{"dtype":"U64","shape":[1],"data_offsets":[32,40]}}`), rowraft.CodeInvalidArgument, "an id for each"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			disk := vfs.NewMem()
			writeFile(t, disk, "x.safetensors", tc.file)
			wantOpen(t, disk, "x.safetensors", tc.code, tc.says)
		})
	}
}

func writeFile(t testing.TB, disk vfs.FS, name string, b []byte) {
	t.Helper()
	if err := vfs.WriteFile(disk, name, b); err != nil {
		t.Fatal(err)
	}
}

// wantOpen opens and checks a file; code 0 means that the file is valid.
func wantOpen(t *testing.T, disk vfs.FS, path string, code rowraft.Code, says string) {
	t.Helper()
	r, err := Open(path, "", ReadOptions{Disk: disk})
	if err == nil {
		err = Check(t.Context(), r, nil)
		defer r.Close()
	}
	// All zeros: repeated ids are the only error.
	if code == 0 && err != nil && strings.Contains(err.Error(), "id 0 occurs twice") {
		return
	}
	if rowraft.CodeOf(err) != code || err != nil && !strings.Contains(err.Error(), says) {
		t.Errorf("%v (%v), want %v and %q", err, rowraft.CodeOf(err), code, says)
	}
}

// parquetFile writes rows of any struct type.
func parquetFile[T any](t testing.TB, rows []T, options ...parquet.WriterOption) []byte {
	t.Helper()
	var b bytes.Buffer
	w := parquet.NewGenericWriter[T](&b, options...)
	if _, err := w.Write(rows); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type (
	plainRow  = parquetRow
	signedRow struct {
		ID        int64     `parquet:"id"`
		Other     string    `parquet:"zzz"`
		Embedding []float64 `parquet:"embedding"` // repeated, not a list
	}
	nullRow struct {
		ID        *uint64    `parquet:"id"`
		Embedding []*float32 `parquet:"embedding,list"`
	}
	innerRow struct {
		Numbers []float32 `parquet:"numbers"`
	}
	nestedRow struct {
		ID        uint64     `parquet:"id"`
		Embedding []innerRow `parquet:"embedding"`
	}
	textRow struct {
		ID        string    `parquet:"id"`
		Embedding []float32 `parquet:"embedding,list"`
	}
	intRow struct {
		ID        uint64  `parquet:"id"`
		Embedding []int32 `parquet:"embedding,list"`
	}
	flatRow struct {
		ID        uint64  `parquet:"id"`
		Embedding float32 `parquet:"embedding"`
	}
)

func TestBadParquet(t *testing.T) {
	one, two := uint64(1), float32(2)
	good := parquetFile(t, []plainRow{{1, []float32{1, 2}}, {2, []float32{3, 4}}})
	footer := len(good) - 8 - int(binary.LittleEndian.Uint32(good[len(good)-8:]))
	for _, tc := range []struct {
		name string
		file []byte
		code rowraft.Code
		says string
	}{
		{"good", good, 0, ""},
		{"signed, double, without a list",
			parquetFile(t, []signedRow{{-1, "a", []float64{1, 2}}, {2, "b", []float64{3, 4}}}), 0, ""},
		{"optional without a null", parquetFile(t, []nullRow{{&one, []*float32{&two, &two}}}), 0, ""},
		{"empty", nil, rowraft.CodeCorrupt, "too few"},
		{"not Parquet", make([]byte, 100), rowraft.CodeCorrupt, "does not begin and end"},
		{"cut", good[:len(good)-1], rowraft.CodeCorrupt, "does not begin and end"},
		{"a footer beyond the file", edit(good, len(good)-8, 0xff, 0xff), rowraft.CodeCorrupt, "footer is said to have"},
		{"a damaged footer", edit(good, footer, 0xff), rowraft.CodeCorrupt, "footer is damaged"},
		{"a damaged page header", edit(good, 4, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), rowraft.CodeCorrupt,
			"page header at byte 4"},
		{"encrypted", append(good[:len(good)-4:len(good)-4], "PARE"...), rowraft.CodeInvalidArgument, "encrypted"},
		{"text ids", parquetFile(t, []textRow{{"a", []float32{1}}}), rowraft.CodeInvalidArgument, "want int64 or uint64"},
		{"whole numbers", parquetFile(t, []intRow{{1, []int32{1}}}), rowraft.CodeInvalidArgument,
			"want a list of float or double"},
		{"no list", parquetFile(t, []flatRow{{1, 1}}), rowraft.CodeInvalidArgument, "want a list of float or double"},
		{"lists of lists", parquetFile(t, []nestedRow{{1, []innerRow{{[]float32{1}}}}}), rowraft.CodeInvalidArgument,
			"want a list of float or double"},
		{"no id", parquetFile(t, []nullRow{{nil, []*float32{&two}}}), rowraft.CodeInvalidArgument, "row 0 has no id"},
		{"a null", parquetFile(t, []nullRow{{&one, []*float32{&two, &two}}, {&one, []*float32{&two, nil}}}),
			rowraft.CodeInvalidArgument, "row 1 (id 1): its vector is null"},
		{"a null first", parquetFile(t, []nullRow{{&one, []*float32{nil, &two}}}), rowraft.CodeInvalidArgument, "null"},
		{"no vector", parquetFile(t, []plainRow{{1, nil}}), rowraft.CodeInvalidArgument, "row 0"},
		{"shorter", parquetFile(t, []plainRow{{1, []float32{1, 2}}, {2, []float32{3}}, {3, []float32{3, 4}}}),
			rowraft.CodeInvalidArgument, "row 1 (id 2): its vector has 1 numbers, that of row 0 has 2"},
		{"longer", parquetFile(t, []plainRow{{1, []float32{1, 2}}, {2, []float32{3, 4, 5}}}), rowraft.CodeInvalidArgument,
			"more than the 2 numbers"},
		{"shorter at the end", parquetFile(t, []plainRow{{1, []float32{1, 2}}, {2, []float32{3}}}), rowraft.CodeCorrupt,
			"row 1"},
		{"NaN", parquetFile(t, []plainRow{{7, []float32{1, float32(math.NaN())}}}), rowraft.CodeInvalidArgument,
			"row 0 (id 7), number 1 is NaN"},
		{"beyond float32", parquetFile(t, []signedRow{{7, "", []float64{1e300}}}), rowraft.CodeInvalidArgument,
			"number 0 is +Inf"},
		{"twice", parquetFile(t, []plainRow{{9, []float32{1}}, {1, []float32{1}}, {9, []float32{1}}}),
			rowraft.CodeInvalidArgument, "id 9 occurs twice"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			disk := vfs.NewMem()
			writeFile(t, disk, "x.parquet", tc.file)
			wantOpen(t, disk, "x.parquet", tc.code, tc.says)
		})
	}
}

func edit(b []byte, at int, with ...byte) []byte {
	b = bytes.Clone(b)
	copy(b[at:], with)
	return b
}

// TestForeignParquet reads encodings and compressions that other programs write.
func TestForeignParquet(t *testing.T) {
	in := make([]signedRow, 3000)
	for i := range in {
		in[i] = signedRow{ID: int64(i) - 7, Embedding: []float64{float64(i % 10), 0.5, -1}}
	}
	for name, o := range map[string][]parquet.WriterOption{
		"snappy":     {parquet.Compression(&parquet.Snappy)},
		"zstd":       {parquet.Compression(&parquet.Zstd)},
		"gzip":       {parquet.Compression(&parquet.Gzip)},
		"dictionary": {parquet.DefaultEncoding(&parquet.RLEDictionary)},
		"v1":         {parquet.DataPageVersion(1), parquet.PageBufferSize(1000)},
		"delta": {parquet.DefaultEncodingFor(parquet.Int64, &parquet.DeltaBinaryPacked),
			parquet.MaxRowsPerRowGroup(500)},
	} {
		t.Run(name, func(t *testing.T) {
			disk := vfs.NewMem()
			writeFile(t, disk, "x.parquet", parquetFile(t, in, o...))
			r := open(t, "x.parquet", ReadOptions{Disk: disk})
			if err := Check(t.Context(), r, nil); err != nil {
				t.Fatal(err)
			}
			got, err := read(r, 100)
			if err != nil || len(got.keys) != len(in) {
				t.Fatalf("%d rows, %v", len(got.keys), err)
			}
			for i, row := range in {
				if int64(got.keys[i]) != row.ID || float64(got.values[3*i]) != row.Embedding[0] || got.values[3*i+2] != -1 {
					t.Fatalf("row %d: %d %v, want %v", i, int64(got.keys[i]), got.values[3*i:3*i+3], row)
				}
			}
		})
	}
}

// TestNames reads a table from a file with other names.
func TestNames(t *testing.T) {
	disk := vfs.NewMem()
	writeFile(t, disk, "x.safetensors",
		safetensorsFile(strings.NewReplacer(`"ids"`, `"k"`, `"vectors"`, `"emb.weight"`).Replace("{"+vector2+","+ids2+"}"),
			40))
	r := open(t, "x.safetensors", ReadOptions{Disk: disk, IDs: "k", Vectors: "emb.weight"})
	if r.Info().Rows != 2 || r.Info().Dim != 3 {
		t.Errorf("%+v", r.Info())
	}
}

// TestIDsInShares detects a repeated id when not all ids are sorted at the same time.
func TestIDsInShares(t *testing.T) {
	for _, twice := range []bool{false, true} {
		in := someRows(1000, 1)
		if twice {
			in.keys[999] = in.keys[3]
		}
		disk := vfs.NewMem()
		write(t, "x.npy", testMeta(1), in, WriteOptions{Disk: disk})
		r := open(t, "x.npy", ReadOptions{Disk: disk})
		passes := 0
		err := check(t.Context(), r, func(n int) { passes += n }, 100)
		want := ""
		if twice {
			want = fmt.Sprintf("id %d occurs twice", in.keys[3])
		}
		if twice != (err != nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("twice %v: %v", twice, err)
		}
		if !twice && passes != 12*1000 { // once for the numbers, then once for each of eleven shares
			t.Errorf("%d rows were read", passes)
		}
	}
}

func TestCheckEndsWithItsContext(t *testing.T) {
	disk := vfs.NewMem()
	write(t, "x.npy", testMeta(1), someRows(10, 1), WriteOptions{Disk: disk})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Check(ctx, open(t, "x.npy", ReadOptions{Disk: disk}), nil); err != context.Canceled {
		t.Error(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir() + "/x.npy"
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, "", ReadOptions{}); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Error(err)
	}
	if _, err := Open("nothing.npy", "", ReadOptions{Disk: vfs.NewMem()}); rowraft.CodeOf(err) != rowraft.CodeNotFound {
		t.Error(err)
	}
}

// TestHeaderIsJSON: names of tables and sources may contain any characters.
func TestHeaderIsJSON(t *testing.T) {
	disk, meta := vfs.NewMem(), testMeta(1)
	meta.Source = "</script>\x00\"\xff ü"
	write(t, "x.safetensors", meta, someRows(1, 1), WriteOptions{Disk: disk})
	b, err := vfs.ReadFile(disk, "x.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(b)
	if !json.Valid(b[8 : 8+n]) {
		t.Errorf("%q", b[8:8+n])
	}
	open(t, "x.safetensors", ReadOptions{Disk: disk})
}
