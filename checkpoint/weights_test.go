package checkpoint

import (
	"encoding/hex"
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
)

// TestWeights reads records written by hand from docs/formats/snapshot.md.
func TestWeights(t *testing.T) {
	const head = "01000000 02000000 efcdab8967452301 0300000000000000"
	for _, tc := range []struct {
		storage rowraft.DType
		record  string
		want    []float32
	}{
		{0, head + "0000803f 000000c0 0000003f" + "0000a040", []float32{1, -2, 0.5}},
		{rowraft.Float32, head + "0000803f 000000c0 0000003f" + "0000a040", []float32{1, -2, 0.5}},
		{rowraft.BFloat16, head + "803f 00c0 003f 0000" + "0000a040", []float32{1, -2, 0.5}}, // padded to 4 bytes
	} {
		record, err := hex.DecodeString(string(slices.DeleteFunc([]byte(tc.record), func(b byte) bool { return b == ' ' })))
		if err != nil {
			t.Fatal(err)
		}
		got := make([]float32, 4) // room for more than a row
		key := Weights(&rowraft.Schema{Dim: 3, Storage: tc.storage}, record, got)
		if key != 0x0123456789abcdef || !slices.Equal(got[:3], tc.want) || got[3] != 0 {
			t.Errorf("%v: key %#x, weights %v", tc.storage, key, got)
		}
	}
}
