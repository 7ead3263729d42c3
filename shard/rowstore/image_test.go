package rowstore

import (
	"testing"

	"github.com/rowraft/rowraft"
)

// TestImageBytes: an image is whole cache lines if that adds at most a sixteenth.
func TestImageBytes(t *testing.T) {
	for _, tc := range []struct {
		dim  int
		want int
	}{
		{1, 24 + 8 + 8},
		{16, 24 + 2*64 + 8},
		{64, 9 * 64},   // 24 + 2·256 + 8 = 544
		{128, 17 * 64}, // 1056
		{120, 16 * 64}, // 992
		{32, 24 + 8*32 + 8},
	} {
		if got := mustNew(t, testSchema(rowraft.Sparse, rowraft.Adagrad, tc.dim)).index.imageBytes(); got != tc.want {
			t.Errorf("dim %d: %d, want %d", tc.dim, got, tc.want)
		}
	}
}
