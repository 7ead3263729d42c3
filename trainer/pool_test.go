package trainer

import (
	"slices"
	"testing"
)

// pool is the product of a matrix of counts [fields, rows] and the rows; unpool is the product of its transpose and the
// gradients.
func TestPool(t *testing.T) {
	const width = 3
	rows := []float32{1, 2, 3, 10, 20, 30, 100, 200, 300}
	for _, tc := range []struct {
		name               string
		index, ends        []int32
		fields, grads, row []float32
	}{
		{
			name:   "a field with one value is its row",
			index:  []int32{2, 0, 2},
			fields: []float32{100, 200, 300, 1, 2, 3, 100, 200, 300},
			grads:  []float32{1, 1, 1, 2, 2, 2, 4, 4, 4},
			row:    []float32{2, 2, 2, 0, 0, 0, 5, 5, 5},
		},
		{
			name:  "a field with several values is their sum, one without values is zero",
			index: []int32{0, 1, 2, 2}, ends: []int32{3, 3, 4},
			fields: []float32{111, 222, 333, 0, 0, 0, 100, 200, 300},
			grads:  []float32{1, 1, 1, 8, 8, 8, 4, 4, 4},
			row:    []float32{1, 1, 1, 1, 1, 1, 5, 5, 5},
		},
		{
			name:  "a value twice in a field counts twice",
			index: []int32{1, 1}, ends: []int32{2},
			fields: []float32{20, 40, 60},
			grads:  []float32{1, 2, 3},
			row:    []float32{0, 0, 0, 2, 4, 6, 0, 0, 0},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fields := slices.Repeat([]float32{7}, len(tc.fields)+width)
			if n := pool(fields, rows, width, tc.index, tc.ends); n != len(tc.fields) || !slices.Equal(fields[:n], tc.fields) ||
				fields[n] != 7 {
				t.Errorf("pool = %d, %v, want %d, %v and no more", n, fields, len(tc.fields), tc.fields)
			}
			got := make([]float32, len(rows))
			unpool(got, tc.grads, width, tc.index, tc.ends)
			if !slices.Equal(got, tc.row) {
				t.Errorf("unpool = %v, want %v", got, tc.row)
			}
		})
	}
}
