package tablefile

import (
	"bytes"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// goldenRows is the table in testdata/golden.py.
var goldenRows = rows{
	keys: []rowraft.Key{math.MaxUint64, 0, 1 << 63},
	values: []float32{
		0, float32(math.Copysign(0, -1)), 1,
		-2.5, 3e38, math.SmallestNonzeroFloat32,
		0.1, 1.0 / 3, -1,
	},
}

// TestGoldenBytes compares both directions with files that golden.py made from the specifications of the formats.
func TestGoldenBytes(t *testing.T) {
	meta := testMeta(3)
	meta.Source = "by hand"
	disk := vfs.NewMem()
	for _, name := range []string{"golden.npy", "golden.safetensors"} {
		got, err := read(open(t, "testdata/"+name, ReadOptions{}), 2)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !slices.Equal(got.keys, goldenRows.keys) || !sameBits(got.values, goldenRows.values) {
			t.Errorf("%s: read %v", name, got)
		}
		write(t, name, meta, goldenRows, WriteOptions{Disk: disk})
	}
	for _, name := range []string{"golden.npy", "golden.ids.npy", "golden.safetensors"} {
		want, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := vfs.ReadFile(disk, name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s:\nwritten %q\nwant    %q", name, got, want)
		}
	}
}
