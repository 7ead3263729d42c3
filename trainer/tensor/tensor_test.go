package tensor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
)

// table is a dense table in memory: SGD with a rate of 1.
type table struct {
	width   int
	rows    map[rowraft.Key][]float32
	largest int // numbers of one call
	fail    error
}

func newTable(width int) *table { return &table{width: width, rows: map[rowraft.Key][]float32{}} }

func (b *table) see(keys []rowraft.Key, values []float32) error {
	b.largest = max(b.largest, len(values))
	if len(values) != len(keys)*b.width || !slices.IsSorted(keys) {
		return fmt.Errorf("%d keys, %d values", len(keys), len(values))
	}
	return b.fail
}

func (b *table) Pull(_ context.Context, keys []rowraft.Key, rows []float32, present []bool) error {
	clear(rows)
	for i, k := range keys {
		row, ok := b.rows[k]
		copy(rows[i*b.width:], row)
		if present != nil {
			present[i] = ok
		}
	}
	return b.see(keys, rows)
}

func (b *table) Push(_ context.Context, keys []rowraft.Key, grads []float32) error {
	for i, k := range keys {
		if b.rows[k] == nil {
			b.rows[k] = make([]float32, b.width)
		}
		for c := range b.width {
			b.rows[k][c] -= grads[i*b.width+c]
		}
	}
	return b.see(keys, grads)
}

func (b *table) Assign(_ context.Context, keys []rowraft.Key, rows []float32) error {
	for i, k := range keys {
		b.rows[k] = slices.Clone(rows[i*b.width : (i+1)*b.width])
	}
	return b.see(keys, rows)
}

func mustNew(t *testing.T, number uint32, width int, shape ...int64) *Tensor {
	t.Helper()
	x, err := New("w", number, width, shape...)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// A tensor of 2^43 values, 32 TiB of them, whose ends and middle are touched: no
// number on the way is cut to 32 bits, and only what was touched is kept.
func TestATensorBeyondTwoGiB(t *testing.T) {
	const width = 8
	x, b := mustNew(t, 9, width, 1<<20, 1<<20, 8), newTable(width)
	if x.Size() != 1<<43 || x.Rows() != MaxRows {
		t.Fatalf("%d values in %d rows, want 2^43 in 2^40", x.Size(), x.Rows())
	}
	last, err := x.Index(1<<20-1, 1<<20-1, 7)
	if err != nil || last != x.Size()-1 {
		t.Fatalf("the last value is %d, %v", last, err)
	}
	places := []int64{0, 1<<31 - width, 1 << 31, 1 << 32, 1<<34 + 3*width, 1 << 42, x.Size() - width}
	for n, from := range places {
		grads := make([]float32, width)
		for c := range grads {
			grads[c] = -float32(10*n + c + 1)
		}
		if err := x.Push(t.Context(), b, from, grads); err != nil {
			t.Fatal(err)
		}
	}
	if len(b.rows) != len(places) {
		t.Errorf("%d rows were made by %d pushes of one each", len(b.rows), len(places))
	}
	for n, from := range places {
		for c := range int64(width) {
			if row, column := x.Place(from + c); row != from/width || int64(column) != c ||
				uint64(x.Key(row))&(1<<40-1) != uint64(from/width) || x.Key(row)>>40 != 9 {
				t.Errorf("value %d is in column %d of row %d, key %x", from+c, column, row, uint64(x.Key(row)))
			}
		}
		got := make([]float32, 5) // from the middle of a row into the next
		if from+7 > x.Size()-5 {
			got = got[:1]
		}
		if err := x.Read(t.Context(), b, from+7, got); err != nil {
			t.Fatal(err)
		}
		want := make([]float32, len(got))
		want[0] = float32(10*n + 8)
		for k, other := range places {
			if other == from+width {
				for c := range want[1:] {
					want[1+c] = float32(10*k + c + 1)
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("values from %d are %v, want %v", from+7, got, want)
		}
	}
}

func TestLayout(t *testing.T) {
	for _, tc := range []struct {
		width      int
		shape      []int64
		size, rows int64
	}{
		{4, nil, 1, 1}, {4, []int64{4}, 4, 1}, {4, []int64{5}, 5, 2}, {3, []int64{2, 3, 2}, 12, 4},
		{4096, []int64{7, 7}, 49, 1},
	} {
		x := mustNew(t, 3, tc.width, tc.shape...)
		if x.Size() != tc.size || x.Rows() != tc.rows || x.Name() != "w" || x.Number() != 3 || x.Width() != tc.width ||
			!slices.Equal(x.Shape(), tc.shape) {
			t.Errorf("%v by %d: %d values in %d rows, want %d in %d", tc.shape, tc.width, x.Size(), x.Rows(), tc.size, tc.rows)
		}
		if keys := x.AppendKeys(nil, 0, x.Rows()); int64(len(keys)) != tc.rows || keys[0] != rowraft.DenseKey(3, 0) ||
			keys[len(keys)-1] != rowraft.DenseKey(3, uint64(tc.rows-1)) {
			t.Errorf("%v by %d: keys %v", tc.shape, tc.width, keys)
		}
	}
}

// What is assigned, filled or pushed, in any cut, reads back; the padding stays zero.
func TestValuesComeBack(t *testing.T) {
	ctx := t.Context()
	for _, width := range []int{1, 3, 64} {
		x, b := mustNew(t, 1, width, 5, 31), newTable(width) // 155: the last row is not full
		want := make([]float32, x.Size())
		if err := x.Fill(ctx, b, func(from int64, dst []float32) {
			for i := range dst {
				dst[i] = float32(from) + float32(i) + 1
			}
		}); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			want[i] = float32(i + 1)
		}
		from := int64(width) * (40 / int64(width))
		grads := make([]float32, x.Size()-from)
		for i := range grads {
			grads[i] = 1
			want[from+int64(i)]--
		}
		if err := x.Push(ctx, b, from, grads); err != nil {
			t.Fatal(err)
		}
		if err := x.Assign(ctx, b, 0, make([]float32, width)); err != nil {
			t.Fatal(err)
		}
		clear(want[:width])
		for a := range want {
			for _, e := range []int{a, min(a+1, len(want)), (a + len(want)) / 2, len(want)} {
				got := make([]float32, e-a)
				if err := x.Read(ctx, b, int64(a), got); err != nil || !slices.Equal(got, want[a:e]) {
					t.Fatalf("width %d: values %d to %d are %v, %v, want %v", width, a, e, got, err, want[a:e])
				}
			}
		}
		for _, v := range b.rows[x.Key(x.Rows()-1)][(x.Size()-1)%int64(width)+1:] {
			if v != 0 {
				t.Errorf("width %d: the padding is %v", width, v)
			}
		}
	}
}

func TestComplete(t *testing.T) {
	ctx := t.Context()
	x, b := mustNew(t, 1, 4, 1<<18+1), newTable(4) // more than one chunk
	check := func(want bool) {
		t.Helper()
		if got, err := x.Complete(ctx, b); err != nil || got != want {
			t.Errorf("Complete = %v, %v, want %v", got, err, want)
		}
	}
	check(false)
	if err := x.Fill(ctx, b, func(int64, []float32) {}); err != nil {
		t.Fatal(err)
	}
	check(true) // zeros are values, too
	if b.largest > chunkBytes/4 {
		t.Errorf("a call moved %d numbers, want at most %d", b.largest, chunkBytes/4)
	}
	for _, row := range []int64{0, 1000, x.Rows() - 1} {
		was := b.rows[x.Key(row)]
		delete(b.rows, x.Key(row))
		check(false)
		b.rows[x.Key(row)] = was
	}
	b.fail = errors.New("away")
	if _, err := x.Complete(ctx, b); !errors.Is(err, b.fail) {
		t.Errorf("Complete = %v, want that of the table", err)
	}
}

func TestWhatIsRefused(t *testing.T) {
	for _, tc := range []struct {
		number uint32
		width  int
		shape  []int64
	}{
		{MaxTensors, 1, nil}, {0, 0, nil}, {0, rowraft.MaxDim + 1, nil}, {0, 1, []int64{0}}, {0, 1, []int64{3, -1}},
		{0, 1, []int64{MaxRows, 2}}, {0, 1, []int64{1 << 32, 1 << 32}}, {0, 4096, []int64{1 << 62, 4}},
	} {
		if _, err := New("w", tc.number, tc.width, tc.shape...); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("New(%d, %d, %v) = %v, want InvalidArgument", tc.number, tc.width, tc.shape, err)
		}
	}
	ctx, x, b := t.Context(), mustNew(t, 0, 4, 10), newTable(4)
	for name, err := range map[string]error{
		"before the first":    x.Read(ctx, b, -1, make([]float32, 1)),
		"behind the last":     x.Read(ctx, b, 8, make([]float32, 3)),
		"push of half a row":  x.Push(ctx, b, 2, make([]float32, 2)),
		"assign of one value": x.Assign(ctx, b, 4, make([]float32, 1)),
		"push of too much":    x.Push(ctx, b, 8, make([]float32, 4)),
		"an index too few":    second(x.Index()),
		"an index outside":    second(x.Index(10)),
	} {
		if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%s: %v, want InvalidArgument", name, err)
		}
	}
	if len(b.rows) != 0 {
		t.Errorf("what was refused made %d rows", len(b.rows))
	}
}

func second(_ int64, err error) error { return err }
