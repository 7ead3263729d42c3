package rowstore

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/wire"
)

// TestDimsOfEveryKind: dims from 1 to the largest, even and odd, for each optimizer and storage type. It
// compares two pushes and an assign with the model, restores records, and pulls in both types.
func TestDimsOfEveryKind(t *testing.T) {
	for _, opt := range []rowraft.OptimizerKind{rowraft.SGD, rowraft.Adagrad, rowraft.Adam} {
		for _, storage := range []rowraft.DType{rowraft.Float32, rowraft.BFloat16} {
			for _, dim := range []int{1, 2, 3, 5, 7, 8, 9, 15, 17, 31, 33, 63, 64, 65, 127, 255, 1000, 1023, 2049, 4095, 4096} {
				schema := testSchema(rowraft.Sparse, opt, dim)
				schema.Storage = storage
				checkDim(t, schema)
			}
		}
	}
}

func checkDim(t *testing.T, schema rowraft.Schema) {
	t.Helper()
	dim := schema.Dim
	table, again, m := mustNew(t, schema), mustNew(t, schema), newModel(schema)
	keys := []rowraft.Key{3, 4, 1 << 60}
	values := func(salt uint64) []float32 {
		v := make([]float32, len(keys)*dim)
		for i := range v {
			v[i] = float32(int64(clustermap.Mix64(salt+uint64(i)))>>40) / 1e6
		}
		return v
	}
	for round := range uint64(3) {
		v := values(round << 32)
		arg := appendFloats(nil, v)
		var err error
		if round == 1 {
			err = table.Assign(keys, arg, rowraft.Float32)
		} else {
			err = table.Update(keys, arg, rowraft.Float32, 0.1)
		}
		if err != nil {
			t.Fatal(err)
		}
		for i, k := range keys {
			if one := v[i*dim : (i+1)*dim]; round == 1 {
				m.assign(k, one)
			} else {
				m.update(k, one, 0.1)
			}
		}
	}
	checkAgainst(t, table, m)
	for _, k := range keys {
		if err := again.RestoreRow(m.record(k)); err != nil {
			t.Fatalf("dim %d: %v", dim, err)
		}
	}
	if again.Digest() != table.Digest() {
		t.Errorf("%s dim %d: restored rows have a different digest", schema.Optimizer.Kind, dim)
	}
	checkPulls(t, table, m, append(keys, 77))
}

// checkPulls reads keys, one of which has no row, in both types.
func checkPulls(t *testing.T, table *Table, m *model, keys []rowraft.Key) {
	t.Helper()
	dim := m.schema.Dim
	wide, half := make([]byte, 4*len(keys)*dim), make([]byte, 2*len(keys)*dim)
	for dt, dst := range map[rowraft.DType][]byte{rowraft.Float32: wide, rowraft.BFloat16: half} {
		if err := table.Pull(keys, dst, dt, nil); err != nil {
			t.Fatal(err)
		}
	}
	asHalf := model{schema: rowraft.Schema{Storage: rowraft.BFloat16}}
	for i, k := range keys {
		want := append([]float32(nil), m.weights(k)...)
		if got := wide[4*i*dim : 4*(i+1)*dim]; string(got) != string(appendFloats(nil, want)) {
			t.Errorf("dim %d key %d reads as float32 %x, want %v", dim, k, got, want)
		}
		asHalf.round(want)
		for j, v := range want {
			if got := binary.LittleEndian.Uint16(half[2*(i*dim+j):]); got != uint16(math.Float32bits(v)>>16) {
				t.Fatalf("dim %d key %d number %d reads as bfloat16 %#x, want %v", dim, k, j, got, v)
			}
		}
	}
}

// TestRoundsToNearestEven tests the ties and the extremes; TestTableAgainstModel tests other numbers.
func TestRoundsToNearestEven(t *testing.T) {
	inf := float32(math.Inf(1))
	schema := testSchema(rowraft.Sparse, rowraft.SGD, 1)
	schema.Storage = rowraft.BFloat16
	table := mustNew(t, schema)
	for _, tc := range []struct{ v, want float32 }{
		{1, 1}, {1 + 0x1p-8, 1}, {1 + 0x1.8p-7, 1 + 0x1p-6}, {1 + 0x1p-8 + 0x1p-20, 1 + 0x1p-7}, {-1 - 0x1.8p-7, -1 - 0x1p-6},
		{0x1p-133, 0x1p-133}, {0x1p-134, 0}, {math.MaxFloat32, inf}, {-0x1.fep127, -0x1.fep127},
	} {
		if err := table.Assign([]rowraft.Key{1}, appendFloats(nil, []float32{tc.v}), rowraft.Float32); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4)
		if err := table.Pull([]rowraft.Key{1}, got, rowraft.Float32, nil); err != nil {
			t.Fatal(err)
		}
		if g := math.Float32frombits(binary.LittleEndian.Uint32(got)); g != tc.want {
			t.Errorf("%x is stored as %x, want %x", tc.v, g, tc.want)
		}
	}
	nan := math.Float32frombits(0x7F800001)
	if got := wire.BFloat16(nan); got != 0x7FC0 {
		t.Errorf("a NaN with only low bits set is stored as %#x, want 0x7fc0", got)
	}
}

// TestSmallStepsAddUp: SGD with weights stored as bfloat16 follows steps that are a tenth of the distance of two
// bfloat16 values. Two tables agree bit for bit. Rounding to nearest would leave every weight where it starts.
func TestSmallStepsAddUp(t *testing.T) {
	const dim, rows, steps, lr = 16, 64, 12_000, 1e-3
	schema := testSchema(rowraft.Sparse, rowraft.SGD, dim)
	schema.Initializer = rowraft.Initializer{Kind: rowraft.InitUniform, A: 1, B: 1.5}
	wide := mustNew(t, schema)
	schema.Storage = rowraft.BFloat16
	half, again := mustNew(t, schema), mustNew(t, schema)
	keys := someKeys(3, rows)
	noise := rand.New(rand.NewPCG(5, 0))
	const goal = 0.5
	weights := func(table *Table) []float32 {
		b, w := make([]byte, 4*rows*dim), make([]float32, rows*dim)
		if err := table.Pull(keys, b, rowraft.Float32, nil); err != nil {
			t.Fatal(err)
		}
		wire.GetFloats(w, rowraft.Float32, b)
		return w
	}
	moved := 0
	g := make([]float32, rows*dim)
	for step := range steps {
		for _, table := range []*Table{wide, half} {
			for i, w := range weights(table) { // the loss (w − goal)²/2 of a noisy example
				g[i] = w - goal + float32(noise.NormFloat64()*0.1)
				nearest := []float32{w - lr*g[i]}
				if wire.RoundTo(rowraft.BFloat16, nearest); table == half && step < 100 && nearest[0] != w {
					moved++
				}
			}
			b := appendFloats(nil, g)
			if err := table.Update(keys, b, rowraft.Float32, lr); err != nil {
				t.Fatal(err)
			}
			if table == half {
				if err := again.Update(keys, b, rowraft.Float32, lr); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if moved > rows*dim {
		t.Errorf("rounding to nearest moves a weight in %d of %d steps: the steps are not small", moved, 100*rows*dim)
	}
	if half.Digest() != again.Digest() {
		t.Error("two tables with the same pushes differ")
	}
	mean := func(w []float32) (m, dev float64) {
		for _, v := range w {
			m += float64(v) / float64(len(w))
		}
		for _, v := range w {
			dev += (float64(v) - m) * (float64(v) - m) / float64(len(w))
		}
		return m, math.Sqrt(dev)
	}
	wideMean, _ := mean(weights(wide))
	halfMean, dev := mean(weights(half))
	t.Logf("mean %.4f as float32, %.4f ± %.4f as bfloat16", wideMean, halfMean, dev)
	if math.Abs(wideMean-goal) > 0.01 || math.Abs(halfMean-goal) > 0.01 || dev > 0.05 {
		t.Errorf("weights end at %.4f as float32 and at %.4f ± %.4f as bfloat16, want %v", wideMean, halfMean, dev, goal)
	}
}

// TestPaddingOfOddRows: the padding of a record is 0, also when its place held a record of another table
// before. A record with any other padding is refused.
func TestPaddingOfOddRows(t *testing.T) {
	schema := testSchema(rowraft.Sparse, rowraft.Adagrad, 3)
	schema.Storage = rowraft.BFloat16
	table := mustNew(t, schema)
	if got := table.RecordBytes(); got != 24+8+12 {
		t.Fatalf("records of %d bytes, want 44", got)
	}
	rec := make([]byte, 44)
	rec[versionOffset] = 1
	for _, at := range []int{30, 31} {
		rec[at] = 1
		if err := table.RestoreRow(rec); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
			t.Errorf("padding byte %d: %v, want Corrupt", at, err)
		}
		rec[at] = 0
	}
	if err := table.RestoreRow(rec); err != nil {
		t.Error(err)
	}
}

// TestBFloat16OnTheWire: a pull rounds, a push widens exactly, and a buffer needs no alignment.
func TestBFloat16OnTheWire(t *testing.T) {
	table := mustNew(t, testSchema(rowraft.Sparse, rowraft.SGD, 3))
	keys := []rowraft.Key{8, 9}
	// 1 -2 3, 0 tiny -1
	wire := append([]byte{0xFF}, 0x80, 0x3F, 0x00, 0xC0, 0x40, 0x40, 0x00, 0x00, 0x01, 0x00, 0x80, 0xBF)[1:]
	if err := table.Assign(keys, wire, rowraft.BFloat16); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(wire))
	if err := table.Pull(keys, got, rowraft.BFloat16, nil); err != nil {
		t.Fatal(err)
	}
	if string(got) != string(wire) {
		t.Errorf("pulled %x, want %x as assigned", got, wire)
	}
	odd := make([]byte, 1+2*3*4)[1:]
	if err := table.Pull(keys, odd, rowraft.Float32, nil); err != nil {
		t.Fatal(err)
	}
	if err := table.Assign(keys, odd, rowraft.Float32); err != nil {
		t.Fatal(err)
	}
	if err := table.Pull(keys, got, rowraft.BFloat16, nil); err != nil {
		t.Fatal(err)
	}
	if string(got) != string(wire) {
		t.Errorf("pulled %x after a round through float32 at an odd address, want %x", got, wire)
	}
}
