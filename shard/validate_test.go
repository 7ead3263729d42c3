package shard

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/wire"
)

// halfShard returns a replica with the even slots, and a key of a slot that it does not hold.
func halfShard(t *testing.T) (r *replica, table rowraft.Schema, own []rowraft.Key, foreign rowraft.Key) {
	c := Config{Shard: 3}
	for s := rowraft.Slot(0); s < rowraft.DefaultSlots; s += 2 {
		c.Slots = append(c.Slots, s)
	}
	r = newReplica(t, c)
	table = testTable(9, "half", 2, sgd)
	r.create(table)
	r.mustOpen(1, 1)
	for k := rowraft.Key(0); len(own) < 3; k++ {
		if clustermap.SlotOf(table.ID, table.Kind, k, rowraft.DefaultSlots)%2 == 0 {
			own = append(own, k)
		} else {
			foreign = k
		}
	}
	return r, table, own, foreign
}

// TestBadPushesAreRefused: Validate and Apply refuse them with the same code, and without any effect.
func TestBadPushesAreRefused(t *testing.T) {
	r, table, own, foreign := halfShard(t)
	with := func(change func(*rows)) []byte {
		s := rows{schema: table, keys: own}
		change(&s)
		return payloadOf(s)
	}
	wider := table
	wider.Dim = 3
	inf := float32(math.Inf(-1))
	good := with(func(*rows) {})
	many := make([]rowraft.Key, rowraft.MaxKeysPerPart+1)
	tooMany := payloadOf(rows{schema: table, flags: wire.FlagNoValues, keys: many[1:]})
	le.PutUint32(tooMany[8:], rowraft.MaxKeysPerPart+1)
	for _, tc := range []struct {
		name    string
		op      wire.Op
		payload []byte
		code    rowraft.Code
		text    string
	}{
		{"an unknown table", 0, payloadOf(rows{schema: testTable(8, "x", 2, sgd), keys: own}), rowraft.CodeTableNotFound,
			"no table 0x8"},
		{"an unknown table without rows",
			0, payloadOf(rows{schema: testTable(8, "x", 2, sgd)}), rowraft.CodeTableNotFound, "no table 0x8"},
		{"another dim", 0, with(func(s *rows) { s.schema = wider }), rowraft.CodeInvalidArgument,
			"table half has dim 2, the request has 3"},
		{"another dim without rows",
			0, with(func(s *rows) { s.schema, s.keys = wider, nil }), rowraft.CodeInvalidArgument, "has dim 2"},
		{"an unknown dtype", 0, append(bytes.Clone(good[:14]), append([]byte{7}, good[15:]...)...),
			rowraft.CodeInvalidArgument, "dtype 7"},
		{"no values", 0, with(func(s *rows) { s.flags = wire.FlagNoValues }), rowraft.CodeInvalidArgument, "flags 0x2"},
		{"no keys", 0, with(func(s *rows) { s.flags = wire.FlagNoKeys }), rowraft.CodeInvalidArgument, "flags 0x4"},
		{"a bitmap", 0, with(func(s *rows) { s.flags = wire.FlagPresence }), rowraft.CodeInvalidArgument, "flags 0x8"},
		{"an unknown flag", 0, append(bytes.Clone(good[:15]), append([]byte{0x40}, good[16:]...)...),
			rowraft.CodeInvalidArgument, "unknown segment flags 0x40"},
		{"an assign with a learning rate",
			wire.OpAssign, with(func(s *rows) { s.flags = wire.FlagLR }), rowraft.CodeInvalidArgument, "flags 0x1"},
		{"keys out of order", 0, with(func(s *rows) { s.keys = []rowraft.Key{own[1], own[0]} }),
			rowraft.CodeInvalidArgument, "strictly ascending"},
		{"a key twice", 0, with(func(s *rows) { s.keys = []rowraft.Key{own[0], own[1], own[1]} }),
			rowraft.CodeInvalidArgument, "occurs twice"},
		{"a table twice", 0, payloadOf(rows{schema: table, keys: own[:1]}, rows{schema: table, keys: own[1:]}),
			rowraft.CodeInvalidArgument, "table half has two segments"},
		{"a foreign key", 0, with(func(s *rows) { s.keys = []rowraft.Key{foreign} }), rowraft.CodeWrongShard,
			"which shard 3 does not hold"},
		{"NaN", 0, with(func(s *rows) { s.values = []float32{0, 0, 0, 0, 0, nan} }), rowraft.CodeInvalidArgument,
			"row 2, dimension 1 is NaN"},
		{"an infinite weight", wire.OpAssign, with(func(s *rows) { s.values = []float32{0, 0, inf, 0, 0, 0} }),
			rowraft.CodeInvalidArgument, "row 1, dimension 0 is -Inf"},
		{"infinite in bfloat16", 0, with(func(s *rows) {
			s.values, s.dtype = []float32{0, 0, inf, 0, 0, 0},
				rowraft.BFloat16
		}), rowraft.CodeInvalidArgument, "is -Inf"},
		{"a cut payload", 0, good[:len(good)-8], rowraft.CodeInvalidArgument, "left"},
		{"half a header", 0, good[:16], rowraft.CodeInvalidArgument, "ends inside a segment header"},
		{"a good segment before a bad one",
			0, append(bytes.Clone(good), good[:8]...), rowraft.CodeInvalidArgument, "ends inside a segment header"},
		{"too many keys", 0, tooMany, rowraft.CodeInvalidArgument, "262145 keys"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			op := max(tc.op, wire.OpPush)
			err := r.Validate(op, tc.payload)
			testutil.WantCode(t, err, tc.code)
			if err != nil && !strings.Contains(err.Error(), tc.text) {
				t.Errorf("error %q does not contain %q", err, tc.text)
			}
			part := push(1, rowraft.Seq(r.index), tc.payload)
			part.Op, part.Floor = op, part.Seq-1
			if _, checked := r.CheckPart(&part); rowraft.CodeOf(checked) != tc.code {
				t.Errorf("CheckPart: %v", checked)
			}
			if len(tc.payload)%8 == 0 {
				testutil.WantCode(t, r.parts(part)[0].Err, tc.code)
			}
		})
	}
	if d := r.digest(); d.Rows != 0 {
		t.Errorf("%d rows after refused pushes only", d.Rows)
	}
}

func TestValidateLimits(t *testing.T) {
	r, table, _, _ := halfShard(t)
	testutil.WantCode(t, r.Validate(0, nil), rowraft.CodeInvalidArgument)
	testutil.WantCode(t, r.Validate(4, nil), rowraft.CodeInvalidArgument)
	testutil.WantCode(t, r.Validate(wire.OpPush, make([]byte, rowraft.MaxEntryBytes+8)), rowraft.CodeInvalidArgument)
	for _, payload := range [][]byte{nil, payloadOf(rows{schema: table}),
		payloadOf(rows{schema: table, flags: wire.FlagLR})} {
		if err := r.Validate(wire.OpPush, payload); err != nil {
			t.Errorf("a payload of %d bytes without rows: %v", len(payload), err)
		}
	}
}

func TestBadPullsAreRefused(t *testing.T) {
	r, table, own, foreign := halfShard(t)
	ask := func(change func(*rows)) []byte {
		s := rows{schema: table, keys: own, flags: wire.FlagNoValues}
		change(&s)
		return payloadOf(s)
	}
	wide := testTable(4, "wide", rowraft.MaxDim, sgd)
	r.create(wide)
	var wideKeys []rowraft.Key
	for k := rowraft.Key(0); len(wideKeys) <= MaxPullBytes/4/rowraft.MaxDim; k++ {
		if clustermap.SlotOf(wide.ID, wide.Kind, k, rowraft.DefaultSlots)%2 == 0 {
			wideKeys = append(wideKeys, k)
		}
	}
	many := make([]rowraft.Key, rowraft.MaxKeysPerPart/2+1)
	for i := range many {
		many[i] = own[0]
	}
	for _, tc := range []struct {
		name    string
		payload []byte
		code    rowraft.Code
	}{
		{"an unknown table", payloadOf(rows{schema: testTable(8, "x", 2, sgd), flags: wire.FlagNoValues}),
			rowraft.CodeTableNotFound},
		{"another dim", ask(func(s *rows) { s.schema.Dim = 1 }), rowraft.CodeInvalidArgument},
		{"values", ask(func(s *rows) { s.flags = 0 }), rowraft.CodeInvalidArgument},
		{"a learning rate", ask(func(s *rows) { s.flags |= wire.FlagLR }), rowraft.CodeInvalidArgument},
		{"a bitmap", ask(func(s *rows) { s.flags |= wire.FlagPresence }), rowraft.CodeInvalidArgument},
		{"known versions alone", ask(func(s *rows) { s.flags |= wire.FlagKnown }), rowraft.CodeInvalidArgument},
		{"a foreign key", ask(func(s *rows) { s.keys = []rowraft.Key{own[0], foreign} }), rowraft.CodeWrongShard},
		{"too many keys", append(ask(func(s *rows) { s.keys = many }), ask(func(s *rows) { s.keys = many })...),
			rowraft.CodeInvalidArgument},
		{"too long a reply", ask(func(s *rows) { s.schema, s.keys = wide, wideKeys }), rowraft.CodeInvalidArgument},
		{"half a header", ask(func(*rows) {})[:20], rowraft.CodeInvalidArgument},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onLookup := tc.code == rowraft.CodeWrongShard
			if _, err := r.ReplySize(tc.payload, false); !onLookup || err != nil {
				testutil.WantCode(t, err, tc.code)
			}
			_, _, err := r.Pull(tc.payload, false, 0, func(size int) []byte {
				if !onLookup {
					t.Fatal("a buffer was asked for")
				}
				return make([]byte, size)
			})
			testutil.WantCode(t, err, tc.code)
		})
	}
}

func TestPullAnswersEachSegmentInItsDType(t *testing.T) {
	r, table, own, _ := halfShard(t)
	r.parts(push(1, 1, payloadOf(rows{schema: table, keys: own[:1], values: []float32{1.001, -7.77}})))
	want, _ := r.pull(table, own[0], own[1])
	ask := append(
		payloadOf(rows{schema: table, flags: wire.FlagNoValues, dtype: rowraft.BFloat16,
			keys: []rowraft.Key{own[1], own[0], own[1]}}),
		payloadOf(rows{schema: table, flags: wire.FlagNoValues})...)
	reply, _, err := r.Pull(ask, false, 0, func(n int) []byte { return bytes.Repeat([]byte{0xAA}, n+16) })
	if err != nil {
		t.Fatal(err)
	}
	s, body, rest, err := wire.ParseSegment(reply)
	if err != nil || s != (wire.Segment{Table: 9, N: 3, Dim: 2, DType: rowraft.BFloat16, Flags: wire.FlagNoKeys}) {
		t.Fatalf("%+v, %v", s, err)
	}
	for i, w := range []float32{want[2], want[3], want[0], want[1], want[2], want[3]} {
		if got := le.Uint16(body.Values[2*i:]); got != wire.BFloat16(w) {
			t.Errorf("number %d: %#04x, want %#04x", i, got, wire.BFloat16(w))
		}
	}
	s, _, rest, err = wire.ParseSegment(rest)
	if err != nil || s != (wire.Segment{Table: 9, Dim: 2, DType: rowraft.Float32, Flags: wire.FlagNoKeys}) ||
		len(rest) != 0 {
		t.Errorf("second segment %+v, %d bytes left, %v", s, len(rest), err)
	}
	if d := r.digest(); d.Rows != 1 {
		t.Errorf("%d rows after pulls, want the pushed one", d.Rows)
	}
}

func TestCreateTable(t *testing.T) {
	r := newReplica(t, Config{})
	a := testTable(7, "a", 4, sgd)
	r.create(a, a)
	create := func(s rowraft.Schema) error {
		return r.apply(wire.CreateTableEntry(r.header(), &s)).Parts[0].Err
	}
	shape := a
	shape.Dim = 5
	testutil.WantCode(t, create(shape), rowraft.CodeTableExists)
	twin := a
	twin.ID = 8
	testutil.WantCode(t, create(twin), rowraft.CodeTableExists)
	renamed := a
	renamed.Name = "b"
	testutil.WantCode(t, create(renamed), rowraft.CodeTableExists)
	nameless := testTable(0, "zero", 4, sgd)
	testutil.WantCode(t, create(nameless), rowraft.CodeInvalidArgument)
	b := testTable(3, "b", 4, adam)
	r.create(b)
	if got := r.Tables(); len(got) != 2 || got[0] != b || got[1] != a {
		t.Errorf("tables %+v", got)
	}
	if !r.hasTable(7) || r.hasTable(8) {
		t.Error("Table is wrong")
	}
	r.mustOpen(1, 1)
	r.parts(push(1, 1, payloadOf(rows{schema: b, keys: []rowraft.Key{1, 2}})))
	if s := r.Stats(); len(s) != 2 || s[0].Name != "b" || s[0].Rows != 2 || s[0].Bytes == 0 || s[1].ID != 7 ||
		s[1].Rows != 0 {
		t.Errorf("stats %+v", s)
	}
}
