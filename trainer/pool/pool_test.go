package pool

import (
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
)

// Two tables of two widths; the first feature has many weighted values and the mean of their rows, the others the sum.
// gather is the product of a matrix of factors and the rows, and scatter that of its transpose and the gradients.
func TestGatherAndScatter(t *testing.T) {
	f := &Fields{Width: 5, Features: []Field{{Table: 0, Width: 2, Mean: true}, {Table: 1, At: 2, Width: 1},
		{Table: 0, At: 3, Width: 2}}, Tables: []rowraft.Schema{{Dim: 2}, {Dim: 1}}}
	b, w := &data.Batch{
		N:       2,
		Keys:    []rowraft.Key{7, 5, 7, 5, 9, 9, 5}, // example 0: {7 5}, {7}, {5}; example 1: {}, {9 9}, {5}
		Offsets: []int32{0, 2, 3, 4, 4, 6, 7},
		Weights: []float32{1, 3, 1, 1, 0.5, 1, -1},
	}, &Rows{}
	fields := slices.Repeat([]float32{8}, 15) // the third example is padding
	w.Prepare(f, b)
	if x, y := w.tables[0].keys, w.tables[1].keys; !slices.Equal(x, []rowraft.Key{5, 7}) ||
		!slices.Equal(y, []rowraft.Key{7, 9}) || len(w.Weights) != 6 {
		t.Fatalf("keys %v and %v, %d numbers", x, y, len(w.Weights))
	}
	copy(w.Weights, []float32{1, 2, 10, 20, 100, 1000}) // rows of 5 and 7, then of 7 and 9
	w.Gather(f, b, fields)
	want := []float32{6.5, 13, 100, 1, 2, 0, 0, 1500, -1, -2, 0, 0, 0, 0, 0}
	if !slices.Equal(fields, want) {
		t.Errorf("fields %v, want %v", fields, want)
	}
	grads := []float32{2, 4, 1, 1, 1, 9, 9, 2, 3, 5, 9, 9, 9, 9, 9}
	w.Scatter(f, b, grads)
	if want := []float32{3 + 1 - 3, 6 + 1 - 5, 1, 2, 1, 3}; !slices.Equal(w.Grads, want) {
		t.Errorf("gradients of rows %v, want %v", w.Grads, want)
	}
}

func TestDedup(t *testing.T) {
	var d dedup
	for _, keys := range [][]rowraft.Key{{}, {7}, {5, 5, 5}, {3, 1, 2, 3, 1 << 63, 0, 2}, {9, 8, 7, 6, 5, 4, 3, 2, 1}} {
		index := make([]int32, len(keys))
		unique := d.unique(keys, index)
		want := slices.Clone(keys)
		slices.Sort(want)
		want = slices.Compact(want)
		if !slices.Equal(unique, want) {
			t.Errorf("unique(%v) = %v, want %v", keys, unique, want)
		}
		for i, k := range keys {
			if unique[index[i]] != k {
				t.Errorf("unique(%v): index %v points key %d to %d", keys, index, k, unique[index[i]])
			}
		}
	}
}
