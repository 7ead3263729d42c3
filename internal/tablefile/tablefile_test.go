package tablefile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/wire"
)

// rows is a table in memory, in the order of a file.
type rows struct {
	keys   []rowraft.Key
	values []float32
}

// someRows has both ends of the key range and finite numbers of every kind.
func someRows(n, dim int) rows {
	r := rows{}
	special := []float32{0, float32(math.Copysign(0, -1)), 1, -1, math.MaxFloat32, -math.MaxFloat32,
		math.SmallestNonzeroFloat32, 1.0 / 3, 1e-30}
	for i := range n {
		k := rowraft.Key(i) * 0x9e3779b97f4a7c15
		switch i {
		case 0:
			k = math.MaxUint64
		case 1:
			k = 0
		case 2:
			k = 1 << 63
		}
		r.keys = append(r.keys, k)
		for j := range dim {
			v := float32(i*dim+j) / 7
			if i < len(special) {
				v = special[(i+j)%len(special)]
			}
			r.values = append(r.values, v)
		}
	}
	return r
}

func testMeta(dim int) Meta {
	return MetaOf(rowraft.Schema{
		ID: 0xfedcba9876543210, Name: "user_emb", Kind: rowraft.Sparse, Dim: dim,
		Initializer: rowraft.Initializer{Kind: rowraft.InitUniform, Seed: math.MaxUint64, A: -0.01, B: 0.01},
	}, "cluster <c>, epoch 3")
}

// write writes a file of r with several calls of Append.
func write(t testing.TB, path string, meta Meta, r rows, o WriteOptions) {
	t.Helper()
	w, err := Create(path, "", meta, o)
	if err != nil {
		t.Fatal(err)
	}
	for at, step := 0, 1; at < len(r.keys); step = step*3 + 1 {
		n := min(step, len(r.keys)-at)
		if err := w.Append(r.keys[at:at+n], r.values[at*meta.Dim:(at+n)*meta.Dim]); err != nil {
			t.Fatal(err)
		}
		at += n
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	if w.Rows() != uint64(len(r.keys)) {
		t.Errorf("Rows() = %d after %d", w.Rows(), len(r.keys))
	}
}

// read returns all rows of an open file, step rows at a time.
func read(r *Reader, step int) (rows, error) {
	out, dim := rows{}, r.Info().Dim
	keys, values := make([]rowraft.Key, step), make([]float32, step*dim)
	for {
		n, err := r.Next(keys, values)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out.keys = append(out.keys, keys[:n]...)
		out.values = append(out.values, values[:n*dim]...)
	}
}

func open(t testing.TB, path string, o ReadOptions) *Reader {
	t.Helper()
	r, err := Open(path, "", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

func TestRoundTrip(t *testing.T) {
	for _, f := range Formats() {
		for _, dim := range []int{1, 3, 16, 17, rowraft.MaxDim} {
			for _, n := range []int{0, 1, 2, 5, 1000} {
				if n*dim > 1<<18 {
					continue
				}
				t.Run(fmt.Sprintf("%s/dim=%d/rows=%d", f, dim, n), func(t *testing.T) {
					disk := vfs.NewMem()
					path, want, meta := "x."+string(f), someRows(n, dim), testMeta(dim)
					write(t, path, meta, want, WriteOptions{Disk: disk})
					r := open(t, path, ReadOptions{Disk: disk})
					info := r.Info()
					if f == NPY && info.Meta != (Meta{}) || f != NPY &&
						(info.Meta.Table != meta.Table || info.Meta.TableID != meta.TableID || info.Meta.Source != meta.Source) {
						t.Errorf("metadata %+v, written %+v", info.Meta, meta)
					}
					if info.Rows != uint64(n) || info.Dim != dim || info.Numbers != "float32" {
						t.Errorf("it says %+v, want %d rows of %d float32", info, n, dim)
					}
					if err := Check(t.Context(), r, nil); err != nil {
						t.Errorf("check: %v", err)
					}
					for _, step := range []int{1, 7, 5000} {
						got, err := read(r, step)
						if err != nil {
							t.Fatal(err)
						}
						if !slices.Equal(got.keys, want.keys) || !sameBits(got.values, want.values) {
							t.Fatalf("read %d at a time: %d rows, not those that were written", step, len(got.keys))
						}
						if err := r.Rewind(); err != nil {
							t.Fatal(err)
						}
					}
				})
			}
		}
	}
}

// TestParquetGroups writes more than one row group, and pages of any length.
func TestParquetGroups(t *testing.T) {
	const dim = 300
	disk, want := vfs.NewMem(), someRows(6000, dim)
	write(t, "x.pq", testMeta(dim), want, WriteOptions{Disk: disk, group: 2 << 20})
	r := open(t, "x.pq", ReadOptions{Disk: disk})
	if n := len(r.dec.(*parquetReader).file.RowGroups()); n != 2 {
		t.Errorf("%d row groups", n)
	}
	got, err := read(r, 999)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.keys, want.keys) || !sameBits(got.values, want.values) {
		t.Error("other rows than were written")
	}
}

func TestBFloat16(t *testing.T) {
	for _, dim := range []int{1, 3, 8} {
		disk := vfs.NewMem()
		in := someRows(101, dim)
		for i, v := range in.values {
			if math.Abs(float64(v)) > 3e38 {
				in.values[i] = 3e38 // the largest float32 rounds to infinity
			}
		}
		write(t, "x.safetensors", testMeta(dim), in, WriteOptions{Disk: disk, DType: rowraft.BFloat16})
		r := open(t, "x.safetensors", ReadOptions{Disk: disk})
		got, err := read(r, 50)
		if err != nil {
			t.Fatal(err)
		}
		if r.Info().Numbers != "bfloat16" || !slices.Equal(got.keys, in.keys) {
			t.Fatalf("%+v with %d ids", r.Info(), len(got.keys))
		}
		for i, v := range in.values {
			if want := math.Float32frombits(uint32(wire.BFloat16(v)) << 16); math.Float32bits(got.values[i]) != math.Float32bits(
				want) {
				t.Fatalf("number %d: %v became %v, want %v", i, v, got.values[i], want)
			}
		}
	}
	for _, f := range []Format{NPY, Parquet} {
		_, err := Create("x."+string(f), "", testMeta(3), WriteOptions{Disk: vfs.NewMem(), DType: rowraft.BFloat16})
		if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%s: %v", f, err)
		}
	}
}

// TestHalf compares with the definition: sign · 2^(e-15) · 1.f, subnormals 2^-14 · 0.f.
func TestHalf(t *testing.T) {
	for h := range 1 << 16 {
		sign, exp, frac := 1.0, h>>10&31, float64(h&0x3ff)/1024
		if h>>15 == 1 {
			sign = -1
		}
		want := sign * math.Ldexp(1+frac, exp-15)
		if exp == 0 {
			want = sign * math.Ldexp(frac, -14)
		}
		got := half(uint16(h))
		switch {
		case exp == 31 && frac == 0:
			if !math.IsInf(float64(got), int(sign)) {
				t.Fatalf("half(%#x) = %v", h, got)
			}
		case exp == 31:
			if got == got {
				t.Fatalf("half(%#x) = %v", h, got)
			}
		case float64(got) != want || math.Signbit(float64(got)) != math.Signbit(sign):
			t.Fatalf("half(%#x) = %v, want %v", h, got, want)
		}
	}
}

// TestSameRowsSameBytes: rows and metadata determine the bytes of a file.
func TestSameRowsSameBytes(t *testing.T) {
	for _, f := range Formats() {
		disk := vfs.NewMem()
		var before []byte
		for range 2 {
			write(t, "x."+string(f), testMeta(5), someRows(77, 5), WriteOptions{Disk: disk, Overwrite: true})
			b, err := vfs.ReadFile(disk, "x."+string(f))
			if err != nil {
				t.Fatal(err)
			}
			if before != nil && !bytes.Equal(b, before) {
				t.Errorf("%s: the same rows gave other bytes", f)
			}
			before = b
		}
	}
}

// names returns the files of a disk.
func names(t testing.TB, disk vfs.FS) (out []string) {
	t.Helper()
	entries, err := disk.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestAbortLeavesNothing(t *testing.T) {
	for _, f := range Formats() {
		disk := vfs.NewMem()
		w, err := Create("x."+string(f), "", testMeta(4), WriteOptions{Disk: disk})
		if err != nil {
			t.Fatal(err)
		}
		in := someRows(10, 4)
		if err := w.Append(in.keys, in.values); err != nil {
			t.Fatal(err)
		}
		if got := names(t, disk); slices.Contains(got, "x."+string(f)) || len(got) == 0 {
			t.Errorf("%s: before Commit there is %v", f, got)
		}
		if err := errors.Join(w.Abort(), w.Abort()); err != nil {
			t.Fatal(err)
		}
		if got := names(t, disk); len(got) > 0 || disk.Open() > 0 {
			t.Errorf("%s: after Abort there is %v, %d open", f, got, disk.Open())
		}
		if err := w.Commit(); err == nil {
			t.Errorf("%s: Commit after Abort", f)
		}
	}
}

func TestExistingFileIsSpared(t *testing.T) {
	for _, f := range Formats() {
		disk := vfs.NewMem()
		path := "x." + string(f)
		write(t, path, testMeta(2), someRows(3, 2), WriteOptions{Disk: disk})
		if _, err := Create(path, "",
			testMeta(2), WriteOptions{Disk: disk}); rowraft.CodeOf(err) != rowraft.CodeAlreadyExists {
			t.Errorf("%s: %v", f, err)
		}
		write(t, path, testMeta(2), someRows(9, 2), WriteOptions{Disk: disk, Overwrite: true})
		if r := open(t, path, ReadOptions{Disk: disk}); r.Info().Rows != 9 {
			t.Errorf("%s: %d rows after it was replaced", f, r.Info().Rows)
		}
		// A file that was created during the write is not overwritten either.
		w, err := Create("y."+string(f), "", testMeta(2), WriteOptions{Disk: disk})
		if err != nil {
			t.Fatal(err)
		}
		write(t, "y."+string(f), testMeta(2), someRows(5, 2), WriteOptions{Disk: disk})
		if err := w.Commit(); rowraft.CodeOf(err) != rowraft.CodeAlreadyExists {
			t.Errorf("%s: %v", f, err)
		}
		for _, name := range names(t, disk) {
			if strings.Contains(name, "partial") {
				t.Errorf("%s: %s is left", f, name)
			}
		}
	}
}

// TestEachFailureOfTheDisk fails every single operation of a write: afterwards the name has the old content
// or does not exist, and no other file remains.
func TestEachFailureOfTheDisk(t *testing.T) {
	for _, f := range Formats() {
		path := "x." + string(f)
		attempt := func(disk vfs.FS) error {
			in := someRows(20, 3)
			w, err := Create(path, "", testMeta(3), WriteOptions{Disk: disk, Overwrite: true})
			if err != nil {
				return err
			}
			if err := w.Append(in.keys, in.values); err != nil {
				return errors.Join(err, w.Abort())
			}
			return w.Commit()
		}
		failed := 0
		for step := 0; ; step++ {
			mem := vfs.NewMem()
			write(t, path, testMeta(3), someRows(5, 3), WriteOptions{Disk: mem})
			disk := vfs.NewFaulty(mem)
			fault := vfs.DiskFault{
				Ops:  []vfs.Op{vfs.OpCreate, vfs.OpWrite, vfs.OpSync, vfs.OpSyncDir, vfs.OpRemove, vfs.OpRename, vfs.OpList},
				Err:  "ENOSPC",
				Path: "*", After: step, Times: 1,
			}
			if err := disk.Set(fault); err != nil {
				t.Fatal(err)
			}
			err := attempt(disk)
			disk.Clear()
			if err == nil {
				break
			}
			failed++
			if mem.Open() > 0 {
				t.Errorf("%s, step %d: %d files are open", f, step, mem.Open())
			}
			for _, name := range names(t, mem) {
				if strings.Contains(name, "partial") && !strings.Contains(err.Error(), "remove") {
					t.Errorf("%s, step %d: %v, and %s is left", f, step, err, name)
				}
			}
			r, oerr := Open(path, "", ReadOptions{Disk: mem})
			if oerr != nil {
				if f != NPY || !errors.Is(oerr, os.ErrNotExist) && rowraft.CodeOf(oerr) != rowraft.CodeNotFound {
					t.Errorf("%s, step %d: %v; then %v", f, step, err, oerr)
				}
				continue
			}
			if n := r.Info().Rows; n != 5 && n != 20 {
				t.Errorf("%s, step %d: %d rows", f, step, n)
			}
			if err := errors.Join(Check(t.Context(), r, nil), r.Close()); err != nil {
				t.Errorf("%s, step %d: %v", f, step, err)
			}
		}
		if failed < 5 {
			t.Errorf("%s: only %d operations could fail", f, failed)
		}
	}
}

func TestAppendChecksLengths(t *testing.T) {
	disk := vfs.NewMem()
	w, err := Create("x.npy", "", testMeta(4), WriteOptions{Disk: disk})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Append([]rowraft.Key{1}, make([]float32, 3)); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Error(err)
	}
	if err := w.Commit(); err == nil || len(names(t, disk)) > 0 {
		t.Errorf("%v, and %v is there", err, names(t, disk))
	}
}

func TestFormatOf(t *testing.T) {
	for _, tc := range []struct {
		path   string
		format Format
		want   Format
	}{
		{"a.npy", "", NPY}, {"a/b.SafeTensors", "", SafeTensors}, {"a.parquet", "", Parquet}, {"a.pq", "", Parquet},
		{"a", Parquet, Parquet}, {"a.npy", Parquet, Parquet}, {"a", "", ""}, {"a.npz", "", ""}, {"a.npy", "csv", ""},
	} {
		got, err := FormatOf(tc.path, tc.format)
		if got != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("FormatOf(%q, %q) = %q, %v", tc.path, tc.format, got, err)
		}
	}
	if got := idsPath("a/b.npy"); got != "a/b.ids.npy" {
		t.Error(got)
	}
}
