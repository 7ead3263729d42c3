package wire

import (
	"bytes"
	"math"
	"path/filepath"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
)

// golden reads testdata/name. The files were written by hand from docs/formats, since a round trip cannot detect a
// mistake that both directions make.
func golden(tb testing.TB, name string) []byte {
	tb.Helper()
	return testutil.GoldenHex(tb, filepath.Join("testdata", name))
}

// wantSegment is a segment with its arrays decoded.
type wantSegment struct {
	Segment
	keys     []rowraft.Key
	presence []byte
	values   []float32

	known, unchanged []byte
	versions         []uint32 // of the rows that have values
}

// numbers returns the numbers of the rows in values, which may have versions, and the versions.
func numbers(s Segment, values []byte) (out []float32, versions []uint32) {
	out = make([]float32, (s.N-s.Unchanged)*s.Dim)
	for i := range s.N - s.Unchanged {
		row := values[i*s.RowBytes():]
		if s.Flags&FlagVersions != 0 {
			versions = append(versions, le.Uint32(row))
			row = row[VersionBytes:]
		}
		GetFloats(out[i*s.Dim:(i+1)*s.Dim], s.DType, row[:s.Dim*s.DType.Size()])
	}
	return out, versions
}

var goldenPayloads = []struct {
	file string
	want []wantSegment
}{
	{"payload_push.hex", []wantSegment{
		{Segment: Segment{Table: 0x0102030405060708, N: 2, Dim: 2, DType: rowraft.Float32, Flags: FlagLR, LR: 0.5},
			keys: []rowraft.Key{3, 0xff00000000000000}, values: []float32{1, -2, 0.5, 3}},
		{Segment: Segment{Table: 9, N: 1, Dim: 3, DType: rowraft.BFloat16}, keys: []rowraft.Key{1<<64 - 1},
			values: []float32{1, -2, 3.140625}},
	}},
	{"payload_pull.hex", []wantSegment{
		{Segment: Segment{Table: 9, N: 3, Dim: 1, DType: rowraft.BFloat16, Flags: FlagNoValues},
			keys: []rowraft.Key{5, 1, 5}},
	}},
	{"payload_reply.hex", []wantSegment{
		{Segment: Segment{Table: 9, N: 3, Dim: 1, DType: rowraft.BFloat16, Flags: FlagNoKeys | FlagPresence},
			presence: []byte{5, 0, 0, 0, 0, 0, 0, 0}, values: []float32{1, -2, 1}},
	}},
	{"payload_pull_versions.hex", []wantSegment{
		{Segment: Segment{Table: 9, N: 3, Dim: 1, DType: rowraft.BFloat16, Flags: FlagNoValues | FlagVersions | FlagKnown},
			keys: []rowraft.Key{5, 1, 7}, known: []byte{3, 2, 1, 0, 0, 0, 0, 0, 255, 255, 255, 255}},
	}},
	{"payload_reply_versions.hex", []wantSegment{
		{Segment: Segment{Table: 9, N: 3, Dim: 1, DType: rowraft.BFloat16, Flags: FlagNoKeys | FlagPresence | FlagVersions,
			Unchanged: 1}, presence: []byte{5, 0, 0, 0, 0, 0, 0, 0}, unchanged: []byte{2, 0, 0, 0, 0, 0, 0, 0},
			versions: []uint32{0x10204, 9}, values: []float32{1, -2}},
	}},
}

func TestGoldenPayloadsAreRead(t *testing.T) {
	for _, tc := range goldenPayloads {
		t.Run(tc.file, func(t *testing.T) {
			payload := golden(t, tc.file)
			for i, want := range tc.want {
				s, body, rest, err := ParseSegment(payload)
				if err != nil {
					t.Fatalf("segment %d: %v", i, err)
				}
				if s != want.Segment {
					t.Errorf("segment %d: %+v, want %+v", i, s, want.Segment)
				}
				if got := Keys(make([]rowraft.Key, s.N), body.Keys); !equal(got, want.keys) {
					t.Errorf("segment %d: keys %v, want %v", i, got, want.keys)
				}
				if !bytes.Equal(body.Presence, want.presence) {
					t.Errorf("segment %d: presence %v, want %v", i, body.Presence, want.presence)
				}
				if !bytes.Equal(body.Known, want.known) || !bytes.Equal(body.Unchanged, want.unchanged) {
					t.Errorf("segment %d: known %v, unchanged %v, want %v and %v", i, body.Known, body.Unchanged, want.known,
						want.unchanged)
				}
				if s.Flags&FlagNoValues == 0 {
					got, versions := numbers(s, body.Values)
					if !equal(got, want.values) || !equal(versions, want.versions) ||
						len(body.Values) != (s.N-s.Unchanged)*s.RowBytes() {
						t.Errorf("segment %d: values %v of versions %v, want %v of %v", i, got, versions, want.values, want.versions)
					}
				} else if len(body.Values) != 0 {
					t.Errorf("segment %d: %d bytes of values", i, len(body.Values))
				}
				payload = rest
			}
			if len(payload) != 0 {
				t.Errorf("%d bytes left", len(payload))
			}
		})
	}
}

func TestGoldenPayloadsAreWritten(t *testing.T) {
	for _, tc := range goldenPayloads {
		t.Run(tc.file, func(t *testing.T) {
			var got []byte
			for _, want := range tc.want {
				// A used buffer with room for all rows.
				all := want.Segment
				all.Unchanged = 0
				b := bytes.Repeat([]byte{0xAA}, all.Size())
				body := all.Put(b)
				for i, k := range want.keys {
					le.PutUint64(body.Keys[8*i:], uint64(k))
				}
				copy(body.Presence, want.presence)
				copy(body.Known, want.known)
				copy(body.Unchanged, want.unchanged)
				at, rowBytes := body.Values, want.RowBytes()
				for row := range len(want.values) / want.Dim {
					lead := 0
					if want.versions != nil {
						le.PutUint32(at, want.versions[row])
						lead = VersionBytes
					}
					PutFloats(at[lead:rowBytes], want.DType, want.values[row*want.Dim:(row+1)*want.Dim])
					at = at[rowBytes:]
				}
				got = append(got, b[:all.LeaveOut(b, want.Unchanged)]...)
			}
			if want := golden(t, tc.file); !bytes.Equal(got, want) {
				t.Errorf("got  %x\nwant %x", got, want)
			}
		})
	}
}

func equal[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

var goldenClient = rowraft.ClientID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}

func goldenParts() []Part {
	noRows := make([]byte, SegmentHeaderSize)
	Segment{Table: 9, Dim: 1, DType: rowraft.Float32}.Put(noRows)
	return []Part{
		{Client: goldenClient, Incarnation: 7, Seq: 10, Floor: 8, Op: OpAssign, Payload: noRows},
		{Client: rowraft.ClientID{0: 255, 15: 1}, Incarnation: 1, Seq: 1, Op: OpPush, Payload: []byte{}},
	}
}

func TestGoldenEntryOfParts(t *testing.T) {
	file := golden(t, "entry_parts.hex")
	wantHeader := EntryHeader{Kind: EntryParts, Version: 1, LogTime: 1_000_000_000, Epoch: 3, Parts: 2}
	h, rest, err := ParseEntryHeader(file)
	if err != nil || h != wantHeader {
		t.Fatalf("header %+v, %v, want %+v", h, err, wantHeader)
	}
	written := make([]byte, EntryHeaderSize)
	PutEntryHeader(written, wantHeader)
	for i, want := range goldenParts() {
		var p Part
		if rest, err = ParsePart(rest, &p); err != nil {
			t.Fatal(err)
		}
		if p.Client != want.Client || p.Incarnation != want.Incarnation || p.Seq != want.Seq || p.Floor != want.Floor ||
			p.Op != want.Op || !bytes.Equal(p.Payload, want.Payload) {
			t.Errorf("part %d: %+v, want %+v", i, p, want)
		}
		size := len(written)
		if written = AppendPart(written, &want); len(written)-size != want.Size() {
			t.Errorf("part %d takes %d bytes, Size says %d", i, len(written)-size, want.Size())
		}
	}
	if len(rest) != 0 {
		t.Errorf("%d bytes left", len(rest))
	}
	if !bytes.Equal(written, file) {
		t.Errorf("written %x\nwant    %x", written, file)
	}
}

// goldenSum returns the part of entry_sum.hex.
func goldenSum() Part {
	seg := Segment{Table: 9, N: 2, Dim: 2, DType: rowraft.Float32, Flags: FlagLR | FlagCounts, LR: 0.5}
	p, rows := SumPart(nil, []*Part{{Client: goldenClient, Incarnation: 7, Seq: 10, Floor: 8},
		{Client: rowraft.ClientID{0: 255, 15: 1}, Incarnation: 1, Seq: 1}}, seg.Size())
	body := seg.Put(rows)
	le.PutUint64(body.Keys, 3)
	le.PutUint64(body.Keys[8:], 4)
	PutFloats(body.Values, seg.DType, []float32{1, -2, 0.5, 3})
	copy(body.Counts, []byte{1, 2})
	return p
}

func TestGoldenSum(t *testing.T) {
	file := golden(t, "entry_sum.hex")
	h, rest, err := ParseEntryHeader(file)
	if err != nil {
		t.Fatal(err)
	}
	written := make([]byte, EntryHeaderSize)
	PutEntryHeader(written, h)
	want := goldenSum()
	if got := want.Size(); got != SumOverhead(2)+56+8 { // a header of 24 bytes, keys, values, counts
		t.Errorf("the part has %d bytes", got)
	}
	if written = AppendPart(written, &want); !bytes.Equal(written, file) {
		t.Errorf("written %x\nwant    %x", written, file)
	}
	var p, c Part
	if rest, err = ParsePart(rest, &p); err != nil || len(rest) != 0 {
		t.Fatalf("%d bytes left, %v", len(rest), err)
	}
	list, rows := ParseSum(&p)
	for _, want := range []Part{{Client: goldenClient, Incarnation: 7, Seq: 10, Floor: 8},
		{Client: rowraft.ClientID{0: 255, 15: 1}, Incarnation: 1, Seq: 1}} {
		if list = NextContributor(list, &c); c.Client != want.Client || c.Incarnation != want.Incarnation ||
			c.Seq != want.Seq || c.Floor != want.Floor {
			t.Errorf("contributor %+v, want %+v", c, want)
		}
	}
	_, body, rest, err := ParseSegment(rows)
	if err != nil || len(list)+len(rest) != 0 || !bytes.Equal(body.Counts, []byte{1, 2}) {
		t.Errorf("%d and %d bytes left, counts %v, %v", len(list), len(rest), body.Counts, err)
	}
}

func TestSumsThatAreRefused(t *testing.T) {
	good := golden(t, "entry_sum.hex")[EntryHeaderSize:]
	change := func(i int, b ...byte) []byte {
		bad := bytes.Clone(good)
		copy(bad[i:], b)
		return bad
	}
	for name, part := range map[string][]byte{
		"a client of its own":          change(3, 1),
		"an incarnation of its own":    change(16, 1),
		"a floor of its own":           change(32, 1),
		"one contributor":              change(24, 1),
		"more than a count can hold":   change(24, 0, 1),
		"a list longer than the part":  change(24, 4),
		"a client twice":               change(PartHeaderSize+contributorSize, goldenClient[:]...),
		"clients that do not ascend":   change(PartHeaderSize, 0xff, 1),
		"an op that does not exist":    change(40, 6),
		"a part that ends in the list": change(44, 72),
	} {
		t.Run(name, func(t *testing.T) {
			var p Part
			_, err := ParsePart(part, &p)
			testutil.WantCode(t, err, rowraft.CodeCorrupt)
		})
	}
}

func TestGoldenOpenSession(t *testing.T) {
	file := golden(t, "entry_session.hex")
	h, body, err := ParseEntryHeader(file)
	if err != nil || h.Kind != EntryOpenSession {
		t.Fatalf("header %+v, %v", h, err)
	}
	want := Opening{goldenClient, 9, 77}
	if o, err := ParseOpenSession(body); err != nil || o != want {
		t.Errorf("%+v, %v, want %+v", o, err, want)
	}
	if got := OpenSessionEntry(EntryHeader{Version: 1, LogTime: 5, Epoch: 1, Parts: 9}, want); !bytes.Equal(got, file) {
		t.Errorf("written %x\nwant    %x", got, file)
	}
}

func TestGoldenCloseSession(t *testing.T) {
	file := golden(t, "entry_session_close.hex")
	h, body, err := ParseEntryHeader(file)
	if err != nil || h.Kind != EntryCloseSession {
		t.Fatalf("header %+v, %v", h, err)
	}
	client, inc, err := ParseCloseSession(body)
	if err != nil || client != goldenClient || inc != 9 {
		t.Errorf("client %x incarnation %d, %v", client, inc, err)
	}
	if got := CloseSessionEntry(EntryHeader{Version: 1, LogTime: 5, Epoch: 1, Parts: 9}, goldenClient,
		9); !bytes.Equal(got, file) {
		t.Errorf("written %x\nwant    %x", got, file)
	}
}

func TestGoldenCreateTable(t *testing.T) {
	for _, tc := range []struct {
		file string
		want rowraft.Schema
	}{
		{"entry_table.hex", rowraft.Schema{
			ID: 0x0123456789abcdef, Name: "users", Kind: rowraft.Sparse, Dim: 16,
			Initializer: rowraft.Initializer{Kind: rowraft.InitUniform, Seed: 42, NameHash: 0x4ce8a257f7c83669, A: -0.5, B: 0.5},
			Optimizer:   rowraft.Optimizer{Kind: rowraft.Adagrad, LR: 0.125, InitialAccumulator: 0.0625, Epsilon: 0x1p-21},
		}},
		{"entry_table_extended.hex", rowraft.Schema{
			ID: 0x0123456789abcdef, Name: "ads1", Kind: rowraft.Sparse, Dim: 16,
			Initializer: rowraft.Initializer{Kind: rowraft.InitZeros, NameHash: 0xa9c7f9322862f290},
			Optimizer:   rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
			Storage:     rowraft.BFloat16, Admission: rowraft.Admission{Kind: rowraft.AdmitCount, Count: 3}, Expire: 3600,
			Capacity: rowraft.Capacity{Rows: 1_000_000, Evict: rowraft.EvictLFU},
		}},
		{"entry_table_ftrl.hex", rowraft.Schema{
			ID: 0x0123456789abcdef, Name: "clicks", Kind: rowraft.Sparse, Dim: 1,
			Initializer: rowraft.Initializer{Kind: rowraft.InitZeros, NameHash: 0xd8be24e0bbc444a7},
			Optimizer: rowraft.Optimizer{Kind: rowraft.FTRL, LR: 0.125, InitialAccumulator: 0.0625, Bound: 10, L1: 1, L2: 2,
				Beta: 0.5},
		}},
		{"entry_table_decay.hex", rowraft.Schema{
			ID: 0x0123456789abcdef, Name: "ads1", Kind: rowraft.Sparse, Dim: 16,
			Initializer: rowraft.Initializer{Kind: rowraft.InitZeros, NameHash: 0xa9c7f9322862f290},
			Optimizer:   rowraft.Optimizer{Kind: rowraft.Momentum, LR: 0.125, Momentum: 0.75, WeightDecay: 0x1p-10, Bound: 2},
			Storage:     rowraft.BFloat16, Expire: 3600, SumPushes: true,
		}},
		{"entry_table_tiered.hex", rowraft.Schema{
			ID: 0x0123456789abcdef, Name: "ads1", Kind: rowraft.Sparse, Dim: 16,
			Initializer: rowraft.Initializer{Kind: rowraft.InitZeros, NameHash: 0xa9c7f9322862f290},
			Optimizer:   rowraft.Optimizer{Kind: rowraft.SGD, LR: 1}, Memory: 0x123456789a,
		}},
	} {
		t.Run(tc.file, func(t *testing.T) {
			file := golden(t, tc.file)
			h, body, err := ParseEntryHeader(file)
			if err != nil || h.Kind != EntryCreateTable || h.Version != FirstVersion {
				t.Fatalf("header %+v, %v", h, err)
			}
			got, rest, err := ParseSchema(body)
			if err != nil || got != tc.want || len(rest) != 0 {
				t.Errorf("schema %+v, %d bytes left, %v", got, len(rest), err)
			}
			if got := CreateTableEntry(EntryHeader{Version: FirstVersion, LogTime: 5, Epoch: 1}, &tc.want); !bytes.Equal(got,
				file) {
				t.Errorf("written %x\nwant    %x", got, file)
			}
		})
	}
}

// TestFloat32StorageIsTheShortForm: naming the default changes no byte.
func TestFloat32StorageIsTheShortForm(t *testing.T) {
	s := rowraft.Schema{ID: 1, Name: "t", Kind: rowraft.Sparse, Dim: 1,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1}}
	old := AppendSchema(nil, &s)
	s.Storage = rowraft.Float32
	if got := AppendSchema(nil, &s); !bytes.Equal(got, old) {
		t.Errorf("written %x\nwant    %x", got, old)
	}
}

// TestMinusZeroIsWrittenAsZero: -0 equals a missing constant, and a parser would report -0 as damage.
func TestMinusZeroIsWrittenAsZero(t *testing.T) {
	minus := float32(math.Copysign(0, -1))
	s := rowraft.Schema{
		ID: 1, Name: "t", Kind: rowraft.Sparse, Dim: 1, Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
		Optimizer: rowraft.Optimizer{Kind: rowraft.Momentum, LR: 1, Momentum: minus, WeightDecay: minus, Bound: minus,
			L1: minus, L2: minus, Beta: minus},
		Storage: rowraft.BFloat16, Admission: rowraft.Admission{Probability: minus},
	}
	if got, _, err := ParseSchema(AppendSchema(nil, &s)); err != nil || got != s {
		t.Errorf("read %+v, %v", got, err)
	}
}

func TestLaterExtensionsThatAreRefused(t *testing.T) {
	good := golden(t, "entry_table_ftrl.hex")[EntryHeaderSize:]
	const at = 72 // offset of the extension
	change := func(i int, b ...byte) []byte {
		bad := bytes.Clone(good)
		copy(bad[i:], b)
		return bad
	}
	sgd := change(10, 1)                 // an optimizer of the first extension
	copy(sgd[44:], make([]byte, 4))      // without an accumulator
	copy(sgd[at+24:], make([]byte, 6*4)) // and without later constants
	for name, schema := range map[string][]byte{
		"the short extension":             append(change(11, 1)[:at+24:at+24], make([]byte, 24)...),
		"no extension":                    change(11, 0),
		"cut":                             good[:len(good)-8],
		"nothing that needs it":           sgd,
		"minus zero":                      change(at+27, 0x80),
		"a momentum of ftrl":              change(at+27, 0x3e),
		"a weight decay of ftrl":          change(at+31, 0x3e),
		"a bound that is not a number":    change(at+34, 0xc0, 0x7f),
		"a negative lambda":               change(at+39, 0xbf),
		"an optimizer that is not":        change(10, 8),
		"a learning rate of 0, with ftrl": change(40, 0, 0, 0, 0),
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := ParseSchema(schema)
			testutil.WantCode(t, err, rowraft.CodeCorrupt, "schema")
		})
	}
}

func TestExtensionsThatAreRefused(t *testing.T) {
	good := golden(t, "entry_table_extended.hex")[EntryHeaderSize:]
	const at = 72 // offset of the extension
	change := func(i int, b ...byte) []byte {
		bad := bytes.Clone(good)
		copy(bad[i:], b)
		return bad
	}
	for _, tc := range []struct {
		name   string
		schema []byte
		code   rowraft.Code
	}{
		{"a longer extension", change(11, 4), rowraft.CodeCorrupt},
		{"cut", good[:len(good)-8], rowraft.CodeCorrupt},
		{"nothing in it", change(at, make([]byte, 24)...), rowraft.CodeCorrupt},
		{"float32 by name", change(at, 1), rowraft.CodeCorrupt},
		{"an unknown storage", change(at, 3), rowraft.CodeCorrupt},
		{"an unknown admission", change(at+1, 3), rowraft.CodeCorrupt},
		{"an unknown eviction", change(at+2, 3), rowraft.CodeCorrupt},
		{"an unknown kind of sums", change(at+3, 2), rowraft.CodeCorrupt},
		{"a probability together with a count", change(at+10, 0x80, 0x3e), rowraft.CodeCorrupt},
		{"minus zero", change(at+11, 0x80), rowraft.CodeCorrupt},
		{"a capacity below one row a slot", change(at+16, 1, 0, 0), rowraft.CodeCorrupt},
		{"a capacity beyond all bounds", change(at+22, 1), rowraft.CodeCorrupt},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := ParseSchema(tc.schema)
			testutil.WantCode(t, err, tc.code, "schema")
		})
	}
}
