package rowstore

import (
	"testing"

	"github.com/rowraft/rowraft"
)

// TestImageBytes: an image is whole cache lines if that adds at most a twelfth.
func TestImageBytes(t *testing.T) {
	for _, tc := range []struct {
		dim  int
		want int
	}{
		{1, 16 + 8 + 8},
		{16, 16 + 2*64 + 8},
		{64, 9 * 64},   // 16 + 2·256 + 8 = 536, and a twelfth is 44
		{128, 17 * 64}, // 1048
		{120, 16 * 64}, // 984
		{32, 16 + 8*32 + 8},
	} {
		if got := mustNew(t, testSchema(rowraft.Sparse, rowraft.Adagrad, tc.dim)).index.imageBytes(); got != tc.want {
			t.Errorf("dim %d: %d, want %d", tc.dim, got, tc.want)
		}
	}
}
