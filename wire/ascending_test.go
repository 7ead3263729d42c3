package wire

import (
	"math"
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
)

func TestAscending(t *testing.T) {
	const dim = 2
	for _, tc := range []struct {
		name       string
		op         Op
		keys       []rowraft.Key
		values     []float32
		wantKeys   []rowraft.Key
		wantValues []float32
	}{
		{"ascending keys stay as they are", OpPush, []rowraft.Key{1, 5}, []float32{1, 2, 3, 4}, []rowraft.Key{1, 5},
			[]float32{1, 2, 3, 4}},
		{"gradients of a key are summed", OpPush, []rowraft.Key{9, 1, 9}, []float32{1, 2, 10, 20, 3, 4},
			[]rowraft.Key{1, 9}, []float32{10, 20, 4, 6}},
		{"in the order they come", OpPush, []rowraft.Key{7, 7, 7}, []float32{1e8, 0, 1, 0, -1e8, 0}, []rowraft.Key{7},
			[]float32{0, 0}},
		{"of assigned values the last counts", OpAssign, []rowraft.Key{9, 1, 9}, []float32{1, 2, 10, 20, 3, 4},
			[]rowraft.Key{1, 9}, []float32{10, 20, 3, 4}},
		{"keys are unsigned", OpPush, []rowraft.Key{math.MaxUint64, 0}, []float32{1, 1, 2, 2},
			[]rowraft.Key{0, math.MaxUint64}, []float32{2, 2, 1, 1}},
		{"a delete has keys only", OpDelete, []rowraft.Key{9, 1, 9}, nil, []rowraft.Key{1, 9}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			keys, values := slices.Clone(tc.keys), slices.Clone(tc.values)
			gotKeys, got := Ascending(tc.op, keys, values, dim)
			if !slices.Equal(gotKeys, tc.wantKeys) || !slices.Equal(got, tc.wantValues) {
				t.Errorf("Ascending(%v, %v) = %v, %v, want %v, %v", tc.keys, tc.values, gotKeys, got, tc.wantKeys,
					tc.wantValues)
			}
			if !slices.Equal(keys, tc.keys) || !slices.Equal(values, tc.values) {
				t.Errorf("Ascending changed the caller's slices")
			}
		})
	}
}
