package rowstore

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/wire"
)

// reader is a client of one table: it has the version and the weights of each of its keys, as bytes.
type reader struct {
	t     *Table
	dt    rowraft.DType
	keys  []rowraft.Key
	known []byte
	rows  [][]byte
}

// pull brings the rows up to date, and returns the keys of those that came.
func (r *reader) pull(tb testing.TB) (came []rowraft.Key) {
	tb.Helper()
	rowBytes := wire.VersionBytes + r.t.index.dim*r.dt.Size()
	dst, bitmap := make([]byte, rowBytes*len(r.keys)), make([]byte, (len(r.keys)+7)/8)
	for i := range bitmap {
		bitmap[i] = 0xaa
	}
	n, err := PullVersions(r.t, r.keys, dst, r.dt, nil, r.known, bitmap)
	if err != nil {
		tb.Fatal(err)
	}
	if r.known == nil {
		r.known, r.rows = make([]byte, wire.VersionBytes*len(r.keys)), make([][]byte, len(r.keys))
	}
	for i, key := range r.keys {
		if bitmap[i/8]>>(i%8)&1 != 0 {
			n--
			continue
		}
		copy(r.known[wire.VersionBytes*i:], dst[:wire.VersionBytes])
		r.rows[i] = dst[wire.VersionBytes:rowBytes:rowBytes]
		came, dst = append(came, key), dst[rowBytes:]
	}
	if n != 0 {
		tb.Fatalf("%d rows more are left out than the bitmap has", n)
	}
	plain := make([]byte, r.t.index.dim*r.dt.Size()*len(r.keys))
	if err := r.t.Pull(r.keys, plain, r.dt, nil); err != nil {
		tb.Fatal(err)
	}
	if got := slices.Concat(r.rows...); !slices.Equal(got, plain) {
		tb.Fatal("the rows of a pull of versions are not those of a pull")
	}
	return came
}

// A reader that has the versions of its rows gets those that changed since, and only those. A row that was removed and
// created again has another version than before.
func TestPullVersions(t *testing.T) {
	for _, dt := range []rowraft.DType{rowraft.Float32, rowraft.BFloat16} {
		t.Run(fmt.Sprint(dt), func(t *testing.T) {
			schema := testSchema(rowraft.Sparse, rowraft.Adagrad, 3)
			table := mustNew(t, schema)
			r := &reader{t: table, dt: dt}
			for k := range 100 {
				r.keys = append(r.keys, rowraft.Key(k))
			}
			push := func(keys ...rowraft.Key) { mustUpdate(t, table, keys, someFloats(uint64(len(keys)), 3*len(keys))) }
			remove := func(keys ...rowraft.Key) {
				if err := table.Delete(keys); err != nil {
					t.Fatal(err)
				}
			}
			push(r.keys[:70]...)
			for _, step := range []struct {
				name   string
				change func()
				came   []rowraft.Key
			}{
				{"all are new", func() {}, r.keys},
				{"nothing changed", func() {}, nil},
				{"pushes to rows", func() { push(3, 4, 69); push(4) }, []rowraft.Key{3, 4, 69}},
				{"a row that was not there", func() { push(70) }, []rowraft.Key{70}},
				{"a row that was removed", func() { remove(5) }, []rowraft.Key{5}},
				{"which is not there, as before", func() {}, nil},
				{"removed and created again", func() { remove(6); push(6) }, []rowraft.Key{6}},
				{"created and removed again", func() { push(99); remove(99) }, nil},
			} {
				step.change()
				if came := r.pull(t); !slices.Equal(came, step.came) {
					t.Errorf("%s: rows %d came, want %d", step.name, came, step.came)
				}
			}
			// Versions that do not fit are not known.
			slot := clustermap.SlotOf(schema.ID, rowraft.Sparse, 7, rowraft.DefaultSlots)
			if err := table.RaiseSlotVersion(slot, uint64(wire.NoVersion)-2); err != nil {
				t.Fatal(err)
			}
			for i, want := range []uint32{wire.NoVersion - 1, wire.NoVersion, wire.NoVersion} {
				again := min(i, 1) // a row whose version is not known comes each time
				push(7)
				first, second := r.pull(t), r.pull(t)
				if got := binary.LittleEndian.Uint32(r.known[wire.VersionBytes*7:]); got != want || len(first) != 1 ||
					len(second) != again {
					t.Errorf("version %#x, want %#x; %d came, then %d", got, want, first, second)
				}
			}
		})
	}
}

func TestPullVersionsRefuses(t *testing.T) {
	table := mustNew(t, testSchema(rowraft.Sparse, rowraft.Adagrad, 3))
	keys := []rowraft.Key{1, 2}
	for _, tc := range []struct{ dst, known, unchanged int }{{31, 0, 1}, {24, 0, 1}, {32, 4, 1}, {32, 12, 1}, {32, 8, 0}} {
		_, err := PullVersions(table, keys, make([]byte, tc.dst), rowraft.Float32, nil, make([]byte, tc.known),
			make([]byte, tc.unchanged))
		if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}
