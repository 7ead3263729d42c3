package tablefile

import (
	"maps"
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// TestTensorsReadAsWritten: names, shapes, bits and metadata, also of more numbers than are converted at a time, of
// none, and of a scalar.
func TestTensorsReadAsWritten(t *testing.T) {
	disk := vfs.NewMem()
	long := someRows(tensorChunk+1, 3).values
	want := []Tensor{{"a.bias", []int{2}, []float32{1, -0.5}}, {"empty", []int{0, 4}, nil},
		{"long", []int{tensorChunk + 1, 3}, long}, {"scalar", nil, []float32{7}}}
	meta := map[string]string{"rowraft.source": "a test"}
	if err := WriteTensors("m.safetensors", want, meta, WriteOptions{Disk: disk}); err != nil {
		t.Fatal(err)
	}
	got, gotMeta, err := ReadTensors(disk, "m.safetensors")
	if err != nil || !maps.Equal(gotMeta, meta) || len(got) != len(want) {
		t.Fatalf("%d tensors, metadata %v, %v", len(got), gotMeta, err)
	}
	for i, g := range got {
		if w := want[i]; g.Name != w.Name || !slices.Equal(g.Shape, w.Shape) || !sameBits(g.Values, w.Values) {
			t.Errorf("tensor %s of shape %v, want %s of %v, or other values", g.Name, g.Shape, w.Name, w.Shape)
		}
	}
	if err := WriteTensors("m.safetensors", want, meta, WriteOptions{Disk: disk}); rowraft.CodeOf(err) !=
		rowraft.CodeAlreadyExists {
		t.Errorf("writing over it: %v, want CodeAlreadyExists", err)
	}
}

func TestTensorsThatNoFileHolds(t *testing.T) {
	for name, tensors := range map[string][]Tensor{
		"a repeated name":      {{"a", []int{1}, []float32{1}}, {"a", []int{1}, []float32{2}}},
		"the name of metadata": {{"__metadata__", []int{1}, []float32{1}}},
		"too few numbers":      {{"a", []int{2, 2}, []float32{1, 2, 3}}},
	} {
		disk := vfs.NewMem()
		err := WriteTensors("m.safetensors", tensors, nil, WriteOptions{Disk: disk})
		if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%s: %v, want CodeInvalidArgument", name, err)
		}
	}
	disk := vfs.NewMem()
	writeFile(t, disk, "i.safetensors", safetensorsFile(`{"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}`, 8))
	if _, _, err := ReadTensors(disk, "i.safetensors"); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("a tensor of integers: %v, want CodeInvalidArgument", err)
	}
}
