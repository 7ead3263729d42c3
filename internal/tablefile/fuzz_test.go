package tablefile

import (
	"os"
	"slices"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/allocs"
	"github.com/rowraft/rowraft/internal/parquetguard"
	"github.com/rowraft/rowraft/internal/vfs"
)

func testdata(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// fuzzFile opens and checks a file with any bytes. It expects an error with a code, or rows that are the
// same after writing and reading them again. It checks that the memory stays below most.
func fuzzFile(t *testing.T, disk *vfs.Mem, path string, most uint64) {
	var got rows
	var err error
	dim := 0
	used := allocs.Bytes(func() {
		var r *Reader
		if r, err = Open(path, "", ReadOptions{Disk: disk}); err != nil {
			return
		}
		defer r.Close()
		if dim = r.Info().Dim; r.Info().Rows > 1<<16 {
			return // a small file with many rows: valid, but slow
		}
		if err = Check(t.Context(), r, nil); err == nil {
			got, err = read(r, 10)
		}
	})
	if used > most {
		t.Errorf("%d bytes were allocated, want at most %d", used, most)
	}
	if rowraft.CodeOf(err) == rowraft.CodeUnknown && err != nil {
		t.Fatalf("an error without a code: %v", err)
	}
	if n := disk.Open(); n > 0 {
		t.Fatalf("%d files are open", n)
	}
	if err != nil || dim == 0 || len(got.keys) == 0 {
		return
	}
	write(t, path, testMeta(dim), got, WriteOptions{Disk: disk, Overwrite: true})
	again, err := read(open(t, path, ReadOptions{Disk: disk}), 7)
	if err != nil || !slices.Equal(again.keys, got.keys) || !sameBits(again.values, got.values) {
		t.Fatalf("other rows after they were written again: %v", err)
	}
}

func FuzzSafetensors(f *testing.F) {
	f.Add(testdata(f, "golden.safetensors"))
	f.Add(safetensorsFile("{"+vector2+","+ids2+"}", 40))
	f.Add(safetensorsFile("{}", 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		disk := vfs.NewMem()
		writeFile(t, disk, "x.safetensors", b)
		fuzzTensors(t, disk, "x.safetensors")
		fuzzFile(t, disk, "x.safetensors", 32<<20+100*uint64(len(b)))
	})
}

// fuzzTensors expects an error with a code, or tensors that are the same after writing and reading them again.
func fuzzTensors(t *testing.T, disk *vfs.Mem, path string) {
	got, meta, err := ReadTensors(disk, path)
	if rowraft.CodeOf(err) == rowraft.CodeUnknown && err != nil {
		t.Fatalf("an error without a code: %v", err)
	}
	if err != nil {
		return
	}
	if err := WriteTensors("again.safetensors", got, meta, WriteOptions{Disk: disk}); err != nil {
		t.Fatal(err)
	}
	again, _, err := ReadTensors(disk, "again.safetensors")
	if err != nil || len(again) != len(got) {
		t.Fatalf("%d tensors after they were written again, were %d: %v", len(again), len(got), err)
	}
	for i, a := range again {
		if a.Name != got[i].Name || !slices.Equal(a.Shape, got[i].Shape) || !sameBits(a.Values, got[i].Values) {
			t.Fatalf("tensor %d is %v after it was written again, and was %v", i, a, got[i])
		}
	}
}

func FuzzNPY(f *testing.F) {
	f.Add(testdata(f, "golden.npy"), testdata(f, "golden.ids.npy"))
	f.Add(npyFile(f4, 24), npyFile(u8, 16))
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, vectors, ids []byte) {
		disk := vfs.NewMem()
		writeFile(t, disk, "x.npy", vectors)
		writeFile(t, disk, "x.ids.npy", ids)
		fuzzFile(t, disk, "x.npy", 32<<20+100*uint64(len(vectors)+len(ids)))
	})
}

// FuzzParquet also tests the library, and the checks that keep it from trusting lengths.
func FuzzParquet(f *testing.F) {
	two := float32(2)
	one := uint64(1)
	f.Add(parquetFile(f, []plainRow{{1, []float32{1, 2}}, {2, []float32{3, 4}}}))
	f.Add(parquetFile(f, []signedRow{{-1, "a", []float64{1, 2}}}, parquet.Compression(&parquet.Zstd),
		parquet.DataPageVersion(1)))
	f.Add(parquetFile(f, []nullRow{{&one, []*float32{&two}}}, parquet.DefaultEncoding(&parquet.RLEDictionary),
		parquet.Compression(&parquet.Snappy)))
	f.Add(parquetFile(f, []plainRow{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		disk := vfs.NewMem()
		writeFile(t, disk, "x.parquet", b)
		// A page may claim to have MaxPageBytes or maxPageValues, and levels of both kinds.
		fuzzFile(t, disk, "x.parquet", 4*parquetguard.MaxPageBytes+1000*uint64(len(b)))
	})
}
