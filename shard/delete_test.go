package shard

import (
	"bytes"
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/wire"
)

func deletion(c byte, seq rowraft.Seq, table rowraft.Schema, keys ...rowraft.Key) wire.Part {
	p := push(c, seq, payloadOf(rows{schema: table, keys: keys, flags: wire.FlagNoValues}))
	p.Op = wire.OpDelete
	return p
}

// TestDeletedRowsAreGone: deleted rows leave the digest and read as the initializer. The next push creates
// them again, with a version that was never used before.
func TestDeletedRowsAreGone(t *testing.T) {
	table := testTable(1, "t", 3, adagrad)
	r, twin := newReplica(t, Config{}), newReplica(t, Config{})
	for _, r := range []*replica{r, twin} {
		r.create(table)
		r.mustOpen(1, 1)
	}
	ones := payloadOf(rows{schema: table, keys: []rowraft.Key{1, 2, 3}})
	r.parts(push(1, 1, ones))
	twin.parts(push(1, 1, payloadOf(rows{schema: table, keys: []rowraft.Key{1, 3}})))

	part := deletion(1, 2, table, 2, 4, 5) // keys 4 and 5 have no row
	res := r.parts(part, part)
	if res[0].Err != nil || res[0].Duplicate || res[1].Err != nil || !res[1].Duplicate {
		t.Fatalf("results %+v, want applied, then a duplicate", res)
	}
	if got, want := r.digest(), twin.digest(); got.Sum != want.Sum || got.Rows != 2 {
		t.Errorf("%d rows with digest %x, want 2 with the digest of a shard that never had the third row, %x",
			got.Rows, got.Sum, want.Sum)
	}
	w, present := r.pull(table, 2)
	initial, _ := twin.pull(table, 2)
	if present[0] || !slices.Equal(w, initial) {
		t.Errorf("the deleted row reads %v, present %v; want the initializer %v", w, present, initial)
	}
	// Late copies of the earlier push and of the delete have no effect.
	r.parts(push(1, 1, ones), part)
	if d := r.digest(); d.Rows != 2 {
		t.Errorf("copies made %d rows of 2", d.Rows)
	}
	twin.parts(push(1, 2, payloadOf(rows{schema: table, keys: []rowraft.Key{2}})))
	r.parts(push(1, 3, payloadOf(rows{schema: table, keys: []rowraft.Key{2}})))
	again, _ := r.pull(table, 2)
	if want, _ := twin.pull(table, 2); !slices.Equal(again, want) {
		t.Errorf("after another push the row is %v, want %v, as a new row", again, want)
	}
	if r.digest().Sum == twin.digest().Sum {
		t.Error("the new row has a version that the old one had")
	}
}

// TestSnapshotsKnowOfRemovals: a restore reads the removal, also after a second restore and
// when no row is left.
func TestSnapshotsKnowOfRemovals(t *testing.T) {
	table := testTable(1, "t", 1, sgd)
	r := newReplica(t, Config{})
	r.create(table)
	r.mustOpen(1, 1)
	r.parts(push(1, 1, payloadOf(rows{schema: table, keys: []rowraft.Key{7}})))
	r.parts(deletion(1, 2, table, 7))
	stream := r.snapshot()
	again := newReplica(t, Config{})
	if err := again.Restore(bytes.NewReader(stream)); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"after a removal": stream, "after a restore": again.snapshot()} {
		rd, err := checkpoint.NewReader(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		blk, err := rd.Next()
		if err != nil || blk.Rows != 0 || blk.Counter != 2 || blk.Removed != 2 {
			t.Errorf("%s: slot %+v, %v; want no rows, counter and removal 2", name, blk.Slot, err)
		}
	}
}

func TestDeletesThatAreRefused(t *testing.T) {
	r, table, mine, foreign := halfShard(t)
	seq := rowraft.Seq(0)
	for _, tc := range []struct {
		name string
		seg  rows
		code rowraft.Code
	}{
		{"with values", rows{schema: table, keys: mine[:2]}, rowraft.CodeInvalidArgument},
		{"with a learning rate", rows{schema: table, keys: mine[:2], flags: wire.FlagNoValues | wire.FlagLR, lr: 1},
			rowraft.CodeInvalidArgument},
		{"of a key twice", rows{schema: table, keys: []rowraft.Key{mine[0], mine[0]}, flags: wire.FlagNoValues},
			rowraft.CodeInvalidArgument},
		{"of a foreign key", rows{schema: table, keys: []rowraft.Key{foreign}, flags: wire.FlagNoValues},
			rowraft.CodeWrongShard},
		{"of no table", rows{schema: rowraft.Schema{ID: 99, Dim: 1}, keys: mine[:1], flags: wire.FlagNoValues},
			rowraft.CodeTableNotFound},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := r.digest()
			seq++
			p := push(1, seq, payloadOf(tc.seg))
			p.Op = wire.OpDelete
			testutil.WantCode(t, r.parts(p)[0].Err, tc.code)
			if after := r.digest(); after.Sum != before.Sum {
				t.Error("rows changed")
			}
		})
	}
}
