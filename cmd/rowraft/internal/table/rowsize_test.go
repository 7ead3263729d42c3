package table

import (
	"cmp"
	"math"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard/rowstore"
)

// TestForecastIsWhatIsMeasured to 7 %, for records of three sizes at several fill
// grades of the index, and for a slot whose index is in many segments.
func TestForecastIsWhatIsMeasured(t *testing.T) {
	for _, tc := range []struct {
		flags tableFlags
		rows  []int
		slots rowraft.SlotCount // 0: rowraft.DefaultSlots
	}{
		{tableFlags{kind: "sparse", dim: 16, optimizer: "adagrad", storage: "float32"},
			[]int{16, 60, 500, 7_000, 20_000, 300_000, 500_000, 750_000}, 0},
		{tableFlags{kind: "sparse", dim: 16, optimizer: "adagrad", storage: "float32"}, []int{200_000, 400_000},
			rowraft.MaxSlots},
		// a third is index
		{tableFlags{kind: "sparse", dim: 3, optimizer: "sgd", storage: "bfloat16"}, []int{700_000, 1_000_000}, 0},
		{tableFlags{kind: "sparse", dim: 33, optimizer: "adam", storage: "bfloat16"}, []int{200_000}, 0},
		{tableFlags{kind: "dense", dim: 2, optimizer: "sgd", storage: "float32"}, []int{1_000_000}, 0},
		// a state of 4 bytes
		{tableFlags{kind: "sparse", dim: 8, optimizer: "rowwise-adagrad", storage: "float32"}, []int{600_000}, 0},
		{tableFlags{kind: "sparse", dim: 9, optimizer: "ftrl", storage: "bfloat16"}, []int{300_000}, 0},
	} {
		tc.flags.init, tc.flags.admit = "zeros", "all"
		schema, err := tc.flags.schema("t", func(string) bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		clusterSlots := cmp.Or(tc.slots, rowraft.DefaultSlots)
		table, err := rowstore.New(rowstore.Options{Schema: schema, Slots: clusterSlots})
		if err != nil {
			t.Fatal(err)
		}
		for _, rows := range tc.rows {
			fillTo(t, table, rows)
			slots := 1.0
			if schema.Kind == rowraft.Dense { // one tensor is in one slot of so many
				slots = float64(clusterSlots)
			}
			f, err := newForecast(schema, float64(rows)*slots, float64(clusterSlots))
			if err != nil {
				t.Fatal(err)
			}
			if f.recordBytes != table.RecordBytes() {
				t.Errorf("%+v: records of %d bytes, forecast %d", tc.flags, table.RecordBytes(), f.recordBytes)
			}
			got, want := float64(table.Bytes())/float64(rows), f.memoryBytes(float64(rows), 1)/float64(rows)
			if math.Abs(want/got-1) > 0.07 {
				t.Errorf("dim %d %s %s, %d rows: %.1f bytes a row, forecast %.1f", tc.flags.dim, tc.flags.optimizer,
					tc.flags.storage, rows, got, want)
			}
		}
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	}
}

// fillTo makes rows until there are n.
func fillTo(t *testing.T, table *rowstore.Table, n int) {
	t.Helper()
	const batch = 500
	values := make([]byte, 4*batch*table.Schema().Dim)
	for table.Rows() < n {
		keys := make([]rowraft.Key, min(batch, n-table.Rows()))
		for i := range keys {
			keys[i] = rowraft.Key(table.Rows() + i) // of a dense table, rows of tensor 0
		}
		if err := table.Assign(keys, values[:4*len(keys)*table.Schema().Dim], rowraft.Float32); err != nil {
			t.Fatal(err)
		}
	}
}
