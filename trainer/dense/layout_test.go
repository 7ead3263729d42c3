package dense

import (
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/models"
)

// Rows of the dense table and flat weights are the same numbers in two layouts.
func TestLayout(t *testing.T) {
	params := []models.Param{{Name: "a", Shape: []int{3, 5}, FanIn: 3, FanOut: 5}, {Name: "b", Shape: []int{64}},
		{Name: "c", Shape: []int{65}}}
	l, err := New(params, make([]Place, len(params)), 1, rowraft.Schema{})
	if err != nil {
		t.Fatal(err)
	}
	want := []rowraft.Key{rowraft.DenseKey(0, 0), rowraft.DenseKey(1, 0), rowraft.DenseKey(2, 0),
		rowraft.DenseKey(2, 1)}
	if len(l.tables) != 1 || !slices.Equal(l.tables[0].keys, want) {
		t.Fatalf("tables %+v, want keys %v", l.tables, want)
	}
	flat := make([]float32, 15+64+65)
	for i := range flat {
		flat[i] = float32(i + 1)
	}
	rows := make([]float32, 4*Width)
	for i := range rows {
		rows[i] = -1 // of an older step
	}
	l.Gradients(rows, flat)
	if rows[14] != 15 || rows[15] != 0 || rows[64] != 16 || rows[128+64] != 15+64+65 || rows[128+65] != 0 {
		t.Errorf("rows %v", rows)
	}
	back := make([]float32, len(flat))
	l.Weights(back, rows)
	for i := range back {
		if back[i] != flat[i]+l.Initial[i] {
			t.Fatalf("weight %d = %v, want initial %v + delta %v", i, back[i], l.Initial[i], flat[i])
		}
	}
}
