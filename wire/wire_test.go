package wire

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
)

// change returns a copy of b with value written at offset.
func change(b []byte, offset int, value ...byte) []byte {
	return append(append(slices.Clone(b[:offset]), value...), b[offset+len(value):]...)
}

func TestParseSegmentRefuses(t *testing.T) {
	good := golden(t, "payload_push.hex") // lr at 16, unchanged at 20, keys at 24; the second segment at 56
	pull, reply := golden(t, "payload_pull_versions.hex"), golden(t, "payload_reply_versions.hex")
	for _, tc := range []struct {
		name    string
		payload []byte
		text    string
	}{
		{"nothing", nil, "ends inside a segment header"},
		{"half a header", good[:23], "23 bytes left"},
		{"a cut array", good[:48], "only 48 bytes of the payload are left"},
		{"no dtype", change(good, 14, 0), "dtype 0"},
		{"an unknown dtype", change(good, 14, 3), "dtype 3"},
		{"an unknown flag", change(good, 15, 0x41), "unknown segment flags 0x40"},
		{"known versions of a push", change(good, 15, 0x21), "known versions are for a pull"},
		{"known versions in a reply", change(reply, 15, 0x3c), "known versions are for a pull"},
		{"rows left out of a pull", change(pull, 20, 1), "only a reply with versions leaves rows out"},
		{"rows left out of a reply without versions", change(reply, 15, 0x0c), "only a reply with versions leaves rows out"},
		{"more rows left out than there are", change(reply, 20, 4), "4 rows unchanged of 3"},
		{"another number of rows left out", change(reply, 32, 3), "marks 2 as unchanged"},
		{"a row left out that is not there", change(reply, 32, 0, 1), "rows that are not there"},
		{"dim 0", change(good, 12, 0, 0), "dim 0"},
		{"dim 4097", change(good, 12, 1, 16), "dim 4097"},
		{"too many keys", change(good, 8, 1, 0, 4, 0), "262145 keys"},
		{"as many keys as 32 bits hold", change(good, 8, 255, 255, 255, 255), "4294967295 keys"},
		{"a rate without its flag", change(good, 15, 0), "without FlagLR"},
		{"a negative rate", change(good, 19, 0xbf), "learning rate -0.5"},
		{"an infinite rate", change(good, 16, 0, 0, 0x80, 0x7f), "learning rate +Inf"},
		{"a rate that is no number", change(good, 16, 0, 0, 0xc0, 0x7f), "learning rate NaN"},
		{"rows left out of a push", change(good, 23, 1), "only a reply with versions leaves rows out"},
		{"padding", change(good[56:], 39, 1), "padding"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, _, err := ParseSegment(tc.payload)
			testutil.WantCode(t, err, rowraft.CodeInvalidArgument, tc.text)
		})
	}
}

func TestCheckKeys(t *testing.T) {
	for _, tc := range []struct {
		keys []uint64
		text string // empty if they are in order
	}{
		{nil, ""},
		{[]uint64{7}, ""},
		{[]uint64{0, 1, 1 << 63, math.MaxUint64}, ""},
		{[]uint64{3, 3}, "key 3 occurs twice (position 1)"},
		{[]uint64{1, 2, 9, 9}, "key 9 occurs twice (position 3)"},
		{[]uint64{1 << 63, 1}, "key 1 at position 1 follows 9223372036854775808"},
	} {
		var b []byte
		for _, k := range tc.keys {
			b = binary.LittleEndian.AppendUint64(b, k)
		}
		err := CheckKeys(5, b)
		if tc.text == "" && err != nil {
			t.Errorf("%v: %v", tc.keys, err)
		}
		if tc.text != "" {
			testutil.WantCode(t, err, rowraft.CodeInvalidArgument, tc.text)
		}
	}
}

// TestCheckFinite puts one number at each position of arrays of every length up to 40, so that it tests
// whole registers, words, their halves and odd remainders.
func TestCheckFinite(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, dt := range []rowraft.DType{rowraft.Float32, rowraft.BFloat16} {
		for n := range 41 {
			s := Segment{Table: 1, N: 1, Dim: max(n, 1), DType: dt}
			for at := range n {
				for _, v := range []float32{0, -0x1p-126, 0x1.fep127, -0x1.fep127, math.SmallestNonzeroFloat32, inf, -inf,
					float32(math.NaN())} {
					values := make([]float32, n)
					for i := range values {
						values[i] = -1.5
					}
					values[at] = v
					b := make([]byte, n*dt.Size())
					PutFloats(b, dt, values)
					err := CheckFinite(s, b)
					if v-v == 0 && err != nil {
						t.Fatalf("%s, %v at %d of %d: %v", dt, v, at, n, err)
					}
					if v-v != 0 {
						testutil.WantCode(t, err, rowraft.CodeInvalidArgument, "must be finite")
					}
				}
			}
		}
	}
	b := make([]byte, 6*4)
	PutFloats(b, rowraft.Float32, []float32{0, 0, 0, 0, 0, inf})
	testutil.WantCode(t, CheckFinite(Segment{Table: 1, N: 2, Dim: 3, DType: rowraft.Float32}, b),
		rowraft.CodeInvalidArgument,
		"row 1, dimension 2 is +Inf")
}

// TestBFloat16RoundsToNearestEven compares with math/big, which rounds to 8 bits of mantissa. Subnormal
// results have fewer bits, so the test checks their distance.
func TestBFloat16RoundsToNearestEven(t *testing.T) {
	for _, tc := range []struct {
		in   uint32
		want uint16
	}{
		{0x00000000, 0x0000}, {0x80000000, 0x8000},
		{0x3f800000, 0x3f80},                       // 1
		{0x3f808000, 0x3f80},                       // half-way, down to even
		{0x3f818000, 0x3f82},                       // half-way, up to even
		{0x3f808001, 0x3f81}, {0x3f807fff, 0x3f80}, // next to half-way
		{0x7f7fffff, 0x7f80},                       // the largest rounds to infinity
		{0x7f7f7fff, 0x7f7f},                       // the largest that does not
		{0x7f800000, 0x7f80}, {0xff800000, 0xff80}, // infinities stay
		{0x7f800001, 0x7fc0}, {0xffffffff, 0xffff}, // NaNs stay NaNs
		{0x00008000, 0x0000}, {0x00018000, 0x0002}, // subnormals, half-way
	} {
		if got := BFloat16(math.Float32frombits(tc.in)); got != tc.want {
			t.Errorf("BFloat16(%#08x) = %#04x, want %#04x", tc.in, got, tc.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		// A normal number up to 0x1.fep127, which does not round to infinity.
		exponent, most := rapid.Uint32Range(1, 254).Draw(t, "exponent"), uint32(1<<23-1)
		if exponent == 254 {
			most = 0x7f0000
		}
		v := math.Float32frombits(rapid.Uint32Range(0, 1).Draw(t, "sign")<<31 | exponent<<23 | rapid.Uint32Range(0,
			most).Draw(t, "mantissa"))
		want, _ := new(big.Float).SetPrec(8).SetMode(big.ToNearestEven).Set(big.NewFloat(float64(v))).Float32()
		if got := math.Float32frombits(uint32(BFloat16(v)) << 16); got != want {
			t.Fatalf("%v rounds to %v, want %v", v, got, want)
		}
	})
}

func TestFloatsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float32(), 0, 40).Draw(t, "values")
		offset := rapid.IntRange(0, 7).Draw(t, "offset") // of the bytes in memory
		b := make([]byte, offset+4*len(values))[offset:]
		PutFloats(b, rowraft.Float32, values)
		got := make([]float32, len(values))
		GetFloats(got, rowraft.Float32, b)
		for i := range values {
			if math.Float32bits(got[i]) != math.Float32bits(values[i]) || le.Uint32(b[4*i:]) != math.Float32bits(values[i]) {
				t.Fatalf("number %d: %v came back as %v", i, values[i], got[i])
			}
		}
	})
}

func TestKeysOfAnyAlignment(t *testing.T) {
	for offset := range 9 {
		b := make([]byte, offset+24)[offset:]
		want := []rowraft.Key{1, 1 << 63, 77}
		for i, k := range want {
			le.PutUint64(b[8*i:], uint64(k))
		}
		if got := Keys(make([]rowraft.Key, 3), b); !slices.Equal(got, want) {
			t.Errorf("offset %d: %v, want %v", offset, got, want)
		}
	}
	if got := Keys(nil, nil); len(got) != 0 {
		t.Errorf("no bytes gave %v", got)
	}
}

func TestPutLeavesNothingOfAUsedBuffer(t *testing.T) {
	s := Segment{Table: 1, N: 65, Dim: 1, DType: rowraft.BFloat16, Flags: FlagNoKeys | FlagPresence}
	b := bytes.Repeat([]byte{0xAA}, s.Size())
	body := s.Put(b)
	if len(body.Presence) != 16 || slices.Max(body.Presence) != 0 {
		t.Errorf("presence %x, want 16 zeros", body.Presence)
	}
	if pad := b[SegmentHeaderSize+16+130:]; len(pad) != 6 || slices.Max(pad) != 0 {
		t.Errorf("padding %x, want 6 zeros", pad)
	}
}

func TestParseEntryHeaderRefuses(t *testing.T) {
	good := golden(t, "entry_session.hex")
	for _, tc := range []struct {
		name  string
		entry []byte
		code  rowraft.Code
	}{
		{"nothing", nil, rowraft.CodeCorrupt},
		{"half a header", good[:31], rowraft.CodeCorrupt},
		{"another magic", change(good, 0, 'r'), rowraft.CodeCorrupt},
		{"another second byte of the magic", change(good, 1, 2), rowraft.CodeCorrupt},
		{"a later version", change(good, 4, byte(NewestVersion()+1)), rowraft.CodeVersionTooNew},
		{"a much later version", change(good, 4, 0, 1), rowraft.CodeVersionTooNew},
		{"version 0", change(good, 4, 0), rowraft.CodeCorrupt},
		{"reserved byte 3", change(good, 3, 1), rowraft.CodeCorrupt},
		{"reserved byte 7", change(good, 7, 1), rowraft.CodeCorrupt},
		{"reserved byte 31", change(good, 31, 1), rowraft.CodeCorrupt},
		{"parts where none can be", change(good, 24, 1), rowraft.CodeCorrupt},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := ParseEntryHeader(tc.entry)
			testutil.WantCode(t, err, tc.code, "log entry")
		})
	}
}

func TestParsePartRefuses(t *testing.T) {
	good := golden(t, "entry_parts.hex")[EntryHeaderSize:]
	for _, tc := range []struct {
		name string
		part []byte
	}{
		{"nothing", nil},
		{"half a header", good[:47]},
		{"a cut payload", good[:PartHeaderSize+23]},
		{"op 0", change(good, 40, 0)},
		{"op 5", change(good, 40, 5)},
		{"reserved byte 41", change(good, 41, 1)},
		{"reserved byte 43", change(good, 43, 1)},
		{"an odd length", change(good, 44, 20)},
		{"a length beyond the end", change(good, 44, 0xf8, 255, 255, 255)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var p Part
			_, err := ParsePart(tc.part, &p)
			testutil.WantCode(t, err, rowraft.CodeCorrupt, "log entry")
		})
	}
}

func TestParseSchemaRefuses(t *testing.T) {
	good := golden(t, "entry_table.hex")[EntryHeaderSize:]
	for _, tc := range []struct {
		name   string
		schema []byte
	}{
		{"nothing", nil},
		{"half of it", good[:63]},
		{"a cut name", good[:68]},
		{"cut padding", good[:71]},
		{"a reserved byte", change(good, 11, 1)},
		{"padding", change(good, 71, 1)},
		{"kind 3", change(good, 8, 3)},
		{"an unknown initializer", change(good, 9, 9)},
		{"an unknown optimizer", change(good, 10, 9)},
		{"dim 0", change(good, 12, 0)},
		{"dim 2^31", change(good, 15, 0x80)},
		{"a rate that is no number", change(good, 40, 0, 0, 0xc0, 0x7f)},
		{"an empty name", change(good, 60, 0)},
		{"a name of 2^32 - 1 bytes", change(good, 60, 255, 255, 255, 255)},
		{"a name that is no name", change(good, 64, '/')},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := ParseSchema(tc.schema)
			testutil.WantCode(t, err, rowraft.CodeCorrupt, "schema")
		})
	}
}

func TestSessionEntriesWantTheirLength(t *testing.T) {
	for _, n := range []int{0, 31, 33} {
		_, err := ParseOpenSession(make([]byte, n))
		testutil.WantCode(t, err, rowraft.CodeCorrupt, "want 32")
	}
	for _, n := range []int{0, 23, 25} {
		_, _, err := ParseCloseSession(make([]byte, n))
		testutil.WantCode(t, err, rowraft.CodeCorrupt, "want 24")
	}
}

func TestSchemasComeBack(t *testing.T) {
	for n := 1; n <= 128; n++ {
		s := rowraft.Schema{
			ID: 1, Name: strings.Repeat("x", n), Kind: rowraft.Dense, Dim: 1,
			Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD},
		}
		b := AppendSchema([]byte("before"), &s)
		got, rest, err := ParseSchema(append(b, "after"...)[6:])
		if err != nil || got != s || string(rest) != "after" || len(b) != 6+SchemaSize(&s) {
			t.Fatalf("name of %d bytes: %+v, rest %q, %v", n, got, rest, err)
		}
	}
}

func FuzzParseSegment(f *testing.F) {
	for _, tc := range goldenPayloads {
		f.Add(golden(f, tc.file))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		s, body, rest, err := ParseSegment(payload)
		if err != nil {
			testutil.WantCode(t, err, rowraft.CodeInvalidArgument, "")
			return
		}
		n := s.Size()
		if len(rest) != len(payload)-n || n%8 != 0 {
			t.Fatalf("%+v: size %d, %d of %d bytes left", s, n, len(rest), len(payload))
		}
		_, _ = CheckKeys(s.Table, body.Keys), CheckFinite(s, body.Values)
		if s.N > 0 && (s.Unchanged > s.N || len(body.Values) > 0 && len(body.Values) != (s.N-s.Unchanged)*s.RowBytes()) {
			t.Fatalf("%+v has %d bytes of values", s, len(body.Values))
		}
		again := make([]byte, n)
		b := s.Put(again)
		copy(b.Keys, body.Keys)
		copy(b.Presence, body.Presence)
		copy(b.Known, body.Known)
		copy(b.Unchanged, body.Unchanged)
		copy(b.Values, body.Values)
		if !bytes.Equal(again, payload[:n]) {
			t.Fatalf("%+v does not write what it was read from", s)
		}
	})
}

func FuzzParseEntry(f *testing.F) {
	for _, name := range []string{"entry_parts.hex", "entry_session.hex", "entry_session_close.hex", "entry_table.hex",
		"entry_mark.hex", "entry_restore_begin.hex", "entry_restore_rows.hex", "entry_restore_close.hex",
		"entry_restore_drop.hex", "entry_sweep.hex", "entry_proof_mark.hex", "entry_proof_agreed.hex",
		"entry_proof_divided.hex", "entry_table_extended.hex", "entry_drop.hex", "entry_membership.hex",
		"entry_membership_end.hex", "entry_step.hex", "entry_clocked.hex", "entry_sum.hex"} {
		f.Add(golden(f, name))
	}
	f.Fuzz(func(t *testing.T, entry []byte) {
		h, rest, err := ParseEntryHeader(entry)
		if err != nil {
			return
		}
		again := make([]byte, EntryHeaderSize)
		PutEntryHeader(again, h)
		switch h.Kind {
		case EntryOpenSession:
			if o, err := ParseOpenSession(rest); err == nil {
				again, rest = OpenSessionEntry(h, o), nil
			}
		case EntryCloseSession:
			if c, inc, err := ParseCloseSession(rest); err == nil {
				again, rest = CloseSessionEntry(h, c, inc), nil
			}
		case EntryCreateTable:
			if s, after, err := ParseSchema(rest); err == nil {
				again, rest = CreateTableEntry(h, &s), after
			}
		case EntryDropTable:
			if id, err := ParseDropTable(rest); err == nil {
				again, rest = DropTableEntry(h, id), nil
			}
		case EntryMark, EntryRestoreBegin, EntryRestoreRows, EntryRestoreClose, EntryRestoreDrop, EntrySweep,
			EntryMembership, EntryStep:
			if b := rebuilt(h, rest); b != nil {
				again, rest = b, nil
			}
		case EntryProof:
			if p, err := ParseProof(rest); err == nil {
				again, rest = ProofEntry(h, &p), nil
			}
		default:
			for range h.Parts {
				var p Part
				after, err := ParsePart(rest, &p)
				if err != nil {
					break
				}
				again, rest = AppendPart(again, &p), after
			}
		}
		if n := len(entry) - len(rest); !bytes.Equal(again, entry[:n]) {
			t.Fatalf("%x is written as %x", entry[:n], again)
		}
	})
}

// rebuilt writes what was read of an entry of kinds 4 to 9, 12 and 13, nil if it is none.
func rebuilt(h EntryHeader, body []byte) []byte {
	switch h.Kind {
	case EntryMembership:
		if m, err := ParseMembership(body); err == nil {
			return MembershipEntry(h, &m)
		}
	case EntryStep:
		if s, err := ParseStep(body); err == nil {
			return AppendStepEntry(nil, h, &s)
		}
	case EntryMark:
		if id, err := ParseMark(body); err == nil {
			return MarkEntry(h, id)
		}
	case EntryRestoreBegin:
		if r, err := ParseRestoreBegin(body); err == nil {
			return RestoreBeginEntry(h, &r)
		}
	case EntryRestoreRows:
		id, seq, rest, err := ParseRestoreRows(body)
		var blocks []byte
		for err == nil && len(rest) > 0 {
			var r RestoreBlock
			if rest, err = ParseRestoreBlock(rest, &r); err == nil {
				blocks = AppendRestoreBlock(blocks, &r)
			}
		}
		if err == nil {
			return RestoreRowsEntry(h, id, seq, blocks)
		}
	case EntryRestoreClose:
		if r, err := ParseRestoreClose(body); err == nil {
			return RestoreCloseEntry(h, &r)
		}
	case EntryRestoreDrop:
		if id, err := ParseRestoreDrop(body); err == nil {
			return RestoreDropEntry(h, id)
		}
	case EntrySweep:
		if s, err := ParseSweep(body); err == nil {
			return SweepEntry(h, &s)
		}
	}
	return nil
}

func BenchmarkCheckFinite(b *testing.B) {
	s := Segment{Table: 1, N: 8192, Dim: 16}
	for _, s.DType = range []rowraft.DType{rowraft.Float32, rowraft.BFloat16} {
		values := make([]byte, s.N*s.Dim*s.DType.Size())
		b.Run(s.DType.String(), func(b *testing.B) {
			b.SetBytes(int64(len(values)))
			for b.Loop() {
				if err := CheckFinite(s, values); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
